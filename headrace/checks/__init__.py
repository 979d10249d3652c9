"""Is an environment what it says it is? `headrace check ENV` prints what these modules find."""
