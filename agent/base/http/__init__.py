"""HTTP/1.1 of a listener, whatever it serves: who may ask, the request, and the answer."""
