// Search in pages that are opened as files: a browser starts no worker for these, so the worker's
// script runs in a hidden frame. Over HTTP nothing of this is used.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const inner = frame.contentWindow;
      const load = address =>
        new Promise((done, fail) => {
          const script = inner.document.createElement("script");
          script.onload = done;
          script.onerror = () => fail(new Error(`${address} cannot be read`));
          script.src = address;
          inner.document.body.append(script);
        });
      inner.importScripts = async (...addresses) => {
        for (const address of addresses) {
          await load(address);
        }
      };
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = load(url).then(() => inner);
    }

    postMessage(data) {
      this.loaded.then(inner => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }
  };
}
