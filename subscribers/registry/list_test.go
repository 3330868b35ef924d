package registry_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/registry"
	"spendhook/subscribers/subscriberstest"
)

func names(all []subscribers.Subscriber) []string {
	list := make([]string, len(all))
	for i, s := range all {
		list[i] = s.Name
	}
	return list
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := map[string]subscribers.Subscriber{}
	for _, in := range []subscribers.Settings{
		{Name: new("Payments"), CallbackURL: new("https://a.example/"), Events: new([]string{"A", "B"})},
		{Name: new("payouts"), CallbackURL: new("https://b.example/"), Events: new([]string{"B"}), Enabled: new(false)},
		{Name: new("CARDS ÄÖ"), CallbackURL: new("https://c.example/"), Events: new([]string{"C", "card.*"})},
	} {
		s, err := b.Store.Create(t.Context(), b.Company, in)
		noErr(t, err)
		made[*in.Name] = s
		b.Advance(time.Second)
	}
	id, unknown, copies := made["payouts"].UUID, uuid.New(), b.Registry()
	for _, c := range []struct {
		name   string
		filter registry.Filter
		want   []string
	}{
		{"all, oldest first", registry.Filter{}, []string{"Payments", "payouts", "CARDS ÄÖ"}},
		{"part of a name in any case", registry.Filter{Name: "PAY"}, []string{"Payments", "payouts"}},
		{"part of a name beyond ASCII", registry.Filter{Name: "äö"}, []string{"CARDS ÄÖ"}},
		{"URL, normalised", registry.Filter{CallbackURL: "HTTPS://A.example:443/#x"}, []string{"Payments"}},
		{"URL is not a prefix", registry.Filter{CallbackURL: "https://a.exampl"}, nil},
		{"enabled", registry.Filter{Enabled: new(true)}, []string{"Payments", "CARDS ÄÖ"}},
		{"disabled", registry.Filter{Enabled: new(false)}, []string{"payouts"}},
		{"any of the events", registry.Filter{Events: []string{"A", "C"}}, []string{"Payments", "CARDS ÄÖ"}},
		{"a type that matches a pattern", registry.Filter{Events: []string{"card.locked"}}, []string{"CARDS ÄÖ"}},
		{"a pattern", registry.Filter{Events: []string{"A*"}}, []string{"Payments"}},
		{"a pattern that has another one's types", registry.Filter{Events: []string{"ca*"}}, []string{"CARDS ÄÖ"}},
		{"a pattern some of whose types another one has", registry.Filter{Events: []string{"card.lock*"}}, []string{"CARDS ÄÖ"}},
		{"a pattern of no subscriber", registry.Filter{Events: []string{"cb*", "AA*"}}, nil},
		{"everything", registry.Filter{Events: []string{"*"}}, []string{"Payments", "payouts", "CARDS ÄÖ"}},
		{"uuid", registry.Filter{UUID: &id}, []string{"payouts"}},
		{"among", registry.Filter{Among: map[uuid.UUID]bool{id: true, unknown: true}}, []string{"payouts"}},
		{"among none", registry.Filter{Among: map[uuid.UUID]bool{}}, nil},
		{"unknown uuid", registry.Filter{UUID: &unknown}, nil},
		{"all must hold", registry.Filter{Name: "pay", Events: []string{"A"}}, []string{"Payments"}},
		{"unknown company", registry.Filter{Company: &unknown}, nil},
	} {
		for _, company := range []*uuid.UUID{&b.Company, nil} {
			f := c.filter
			if f.Company == nil {
				f.Company = company
			}
			for by, list := range map[string]func(context.Context, registry.Filter) ([]subscribers.Subscriber, int, error){
				"store": b.Registry().List, "registry": copies.List,
			} {
				got, total, err := list(t.Context(), f)
				noErr(t, err)
				if !slices.Equal(names(got), c.want) || total != len(c.want) {
					t.Errorf("%s (company %v, %s): %q of %d, want %q", c.name, company != nil, by, names(got), total, c.want)
				}
			}
		}
	}
}

// A list has no secrets, and does not take them from the copies.
func TestListShowsNoSecrets(t *testing.T) {
	t.Parallel()
	b := setup(t)
	settings := b.Settings("https://example.com/")
	settings.Headers = map[string]*secret.Text{"X-Api-Key": new(secret.Text("hunter22"))}
	settings.OAuth = &callback.OAuthChange{
		TokenURL: new("https://login.example.com/"), ClientID: new("us"), ClientSecret: new(secret.Text("hunter23")),
	}
	made, err := b.Store.Create(t.Context(), b.Company, settings)
	noErr(t, err)
	_, err = certificate.New(certificate.Options{Client: b.Redis, Keyring: sealtest.Keyring()}).Set(t.Context(), b.Company, subscriberstest.ClientCertificate(t, time.Now()))
	noErr(t, err)
	copies := b.Registry()
	for what, list := range map[string]func() ([]subscribers.Subscriber, int, error){
		"all companies": func() ([]subscribers.Subscriber, int, error) { return copies.List(t.Context(), registry.Filter{}) },
		"all, by a name": func() ([]subscribers.Subscriber, int, error) {
			return copies.List(t.Context(), registry.Filter{Name: "pay"})
		},
		"a company's, kept": func() ([]subscribers.Subscriber, int, error) {
			return copies.List(t.Context(), registry.Filter{Company: &b.Company})
		},
	} {
		all, _, err := list()
		noErr(t, err)
		if len(all) != 1 {
			t.Fatalf("%s: %d are listed", what, len(all))
		}
		s := all[0]
		if s.Secrets != nil || s.Certificate != nil || !reflect.DeepEqual(s.SigningKeys, subscribers.SigningKeys{}) ||
			!slices.Equal(s.Headers, []callback.Header{{Name: "X-Api-Key"}}) ||
			*s.OAuth != (callback.OAuth{TokenURL: "https://login.example.com/", ClientID: "us"}) {
			t.Errorf("%s: %+v %+v", what, s, s.OAuth)
		}
	}
	kept, err := copies.Current(t.Context(), b.Company)
	noErr(t, err)
	if k := kept[0]; len(k.Secrets) != 1 || k.Certificate == nil || k.Headers[0].Value != "hunter22" || k.OAuth.ClientSecret != made.OAuth.ClientSecret {
		t.Error("a list took the secrets of the copies")
	}
}

// Over many companies the pages are disjoint, complete and the same each time.
func TestPagesCoverAllCompaniesOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const companies, each, size = 90, 3, 7
	for c := range companies {
		b.Company = uuid.New()
		for i := range each {
			b.Create(t, fmt.Sprintf("https://example.com/%d/%d", c, i))
		}
	}
	for _, f := range []registry.Filter{{}, {Events: []string{"PAYMENT_PAID"}}} {
		seen := map[uuid.UUID]bool{}
		for page := 0; ; page++ {
			f.Page, f.Size = page, size
			items := listTwice(t, b, f, companies*each)
			for _, s := range items {
				seen[s.UUID] = true
			}
			if len(items) < size {
				break
			}
		}
		if len(seen) != companies*each {
			t.Errorf("%+v: %d subscribers on all pages, want %d", f, len(seen), companies*each)
		}
	}
}

func listTwice(t *testing.T, b *bundle, f registry.Filter, wantTotal int) []subscribers.Subscriber {
	t.Helper()
	first, total, err := b.Registry().List(t.Context(), f)
	noErr(t, err)
	again, _, err := b.Registry().List(t.Context(), f)
	noErr(t, err)
	same := slices.EqualFunc(first, again, func(a, b subscribers.Subscriber) bool { return a.UUID == b.UUID })
	if total != wantTotal || !same {
		t.Fatalf("page %d: total %d, want %d; the same twice: %v", f.Page, total, wantTotal, same)
	}
	return first
}

func TestListPaging(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 25 {
		b.Create(t, fmt.Sprintf("https://example.com/%d", i))
	}
	for _, c := range []struct{ page, size, want int }{
		{0, 0, 20}, {1, 0, 5}, {0, 100, 25}, {2, 10, 5}, {3, 10, 0}, {1 << 62, 100, 0},
	} {
		for _, company := range []*uuid.UUID{&b.Company, nil} {
			items, total, err := b.Registry().List(t.Context(), registry.Filter{Company: company, Page: c.page, Size: c.size})
			noErr(t, err)
			if len(items) != c.want || total != 25 {
				t.Errorf("page %d of %d: %d of %d, want %d of 25", c.page, c.size, len(items), total, c.want)
			}
		}
	}
	_, _, err := b.Registry().List(t.Context(), registry.Filter{CallbackURL: "nonsense"})
	wantInvalid(t, err)
}

// A page without filters reads only the companies that it shows, and counts the others.
func TestPlainPageReadsOnlyWhatItShows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 60 {
		b.Company = uuid.New()
		b.Create(t, "https://example.com/1")
		b.Create(t, "https://example.com/2")
	}
	var reads atomic.Int64
	b.Redis.AddHook(redistest.Hook{Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
		for _, cmd := range cmds {
			if cmd.Name() == "hgetall" {
				reads.Add(1)
			}
		}
		return next(ctx, cmds)
	}})
	for _, page := range []int{0, 5, 11} {
		reads.Store(0)
		items, total, err := b.Registry().List(t.Context(), registry.Filter{Page: page, Size: 10})
		noErr(t, err)
		if len(items) != 10 || total != 120 || reads.Load() != 5 {
			t.Errorf("page %d: %d of %d, %d companies read, want 5", page, len(items), total, reads.Load())
		}
	}
}
