while [ -e /tmp/me/quiet ]; do sleep 5; done
