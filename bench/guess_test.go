package main

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// TestGuesses checks the guesses that are sent, and the counts of their answers.
func TestGuesses(t *testing.T) {
	var mu sync.Mutex
	secrets, clients, addresses := map[string]bool{}, map[string]bool{}, map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		secrets[r.FormValue("client_secret")] = true
		clients[r.FormValue("client_id")] = true
		addresses[r.RemoteAddr[:len("127.1.0.1:")]+r.Header.Get("X-Forwarded-For")] = true
		w.WriteHeader([]int{http.StatusUnauthorized, http.StatusServiceUnavailable, http.StatusOK}[min(len(secrets)%10, 2)])
	}))
	defer server.Close()
	spec := guessSpec{URL: server.URL, From: "127.1.0.1", Client: "shc_victim", Guesses: 50, Conns: 4}
	r := spec.run(t.Context())
	if r.Refused != 5 || r.Busy != 5 || r.Others != 40 || r.sent() != 50 || r.clean() == nil {
		t.Errorf("%+v", r)
	}
	if len(secrets) != 50 || len(clients) != 1 || !clients["shc_victim"] || len(addresses) != 1 || !addresses["127.1.0.1:"] {
		t.Errorf("%d secrets, clients %v, addresses %v", len(secrets), clients, addresses)
	}
	spec.Distributed = true
	if r := spec.run(t.Context()); r.sent() != 50 || len(clients) != 51 || len(addresses) != 51 {
		t.Errorf("%+v; %d clients, %d addresses", r, len(clients), len(addresses))
	}
}
