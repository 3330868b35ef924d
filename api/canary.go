package api

import "net/http"

// CanaryRoute is the path at which deliveries to the canary arrive. It is no operation of the document.
const CanaryRoute = "/canary"

func (s *server) routeCanary() {
	if s.opts.Canary != nil {
		s.router.Handle(CanaryRoute, s.observe(CanaryRoute, http.MethodPost, s.opts.Canary)).Methods(http.MethodPost)
	}
}
