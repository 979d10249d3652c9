// Browsers allow no workers where pages are opened from a folder: there the search runs in a hidden frame.
class FrameWorker extends EventTarget {
  constructor(url) {
    super()
    this.frame = Object.assign(document.createElement("iframe"), { hidden: true })
    document.body.append(this.frame)
    const inner = this.frame.contentWindow
    inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
    const script = Object.assign(inner.document.createElement("script"), { src: url })
    this.loaded = new Promise(done => (script.onload = done))
    inner.document.body.append(script)
  }
  postMessage(data) {
    this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
  }
  terminate() {
    this.frame.remove()
  }
}

// A query is searched without dashes before its words: --num-envs would otherwise exclude pages with the word.
const QUERY = 2 // the type of the message, as Material has it
window.Worker = class extends (location.protocol === "file:" ? FrameWorker : window.Worker) {
  postMessage(message) {
    const query = message.type === QUERY && typeof message.data === "string"
    super.postMessage(query ? { ...message, data: message.data.replace(/(^|\s)-+(?=\w)/g, "$1") } : message)
  }
}
