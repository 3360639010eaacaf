"""The client: an endpoint over HTTP. `http.HttpEndpoint` is what others use."""
