package clients

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/auth/authtest"
	"spendhook/internal/invalid"
	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	certOne = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA1"
	certTwo = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA2"
)

func TestNewClientIsChecked(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	clients := NewStore(storagetest.Open(t, storage.Options{}), c.Now)
	company := new(uuid.New())
	good := Registration{Name: "n", Scopes: []string{"events:read"}}
	for name, n := range map[string]func(*Registration){
		"no name":                     func(n *Registration) { n.Name = " " },
		"a long name":                 func(n *Registration) { n.Name = strings.Repeat("n", maxName+1) },
		"a name that is not UTF-8":    func(n *Registration) { n.Name = "\xff" },
		"a name of two lines":         func(n *Registration) { n.Name = "a\nb" },
		"no scope":                    func(n *Registration) { n.Scopes = nil },
		"an unknown scope":            func(n *Registration) { n.Scopes = []string{"events"} },
		"platform, of a company":      func(n *Registration) { n.Company, n.Scopes = company, []string{"platform"} },
		"operator, of a company":      func(n *Registration) { n.Company, n.Scopes = company, []string{"operator"} },
		"operator without platform":   func(n *Registration) { n.Scopes = []string{"operator"} },
		"no thumbprint":               func(n *Registration) { n.Certificates = []string{"x"} },
		"neither secret nor certs":    func(n *Registration) { n.NoSecret = true },
		"too many certificates":       func(n *Registration) { n.Certificates = slices.Repeat([]string{certOne}, maxCertificates+1) },
		"a thumbprint of two in one ": func(n *Registration) { n.Certificates = []string{certOne + " " + certTwo} },
	} {
		bad := good
		n(&bad)
		_, _, err := clients.Create(t.Context(), bad)
		if problems, ok := errors.AsType[*invalid.Error](err); !ok || len(problems.Fields) != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 3 {
		if _, _, err := clients.Create(t.Context(), good); err != nil {
			t.Fatal(err)
		}
	}
	first, next, err := clients.List(t.Context(), "", 2)
	if err != nil || len(first) != 2 || next == "" {
		t.Fatalf("%d clients, %q, %v", len(first), next, err)
	}
	if rest, next, err := clients.List(t.Context(), next, 2); err != nil || len(rest) != 1 || next != "" {
		t.Errorf("%d more clients, %q, %v", len(rest), next, err)
	}
}
