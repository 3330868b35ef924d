package api

import (
	"net/http"

	"spendhook/contacts"
)

// routeContacts serves the pages of the links that are sent to contacts. They are no operations of the document.
func (s *server) routeContacts() {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		s.router.PathPrefix(contacts.Route).Handler(s.observe(contacts.Route, method, s.opts.Contacts)).Methods(method)
	}
}
