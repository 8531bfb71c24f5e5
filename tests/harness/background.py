"""Work beside a test, in a thread of its own."""

import threading


class Background:
    """Works while a `with` is entered: `work` goes on until `over` is set. The error that ends it
    is kept in `error`."""

    def __init__(self):
        self.over = threading.Event()
        self.error = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def run(self):
        try:
            self.work()
        except Exception as error:  # noqa: BLE001
            self.error = error
