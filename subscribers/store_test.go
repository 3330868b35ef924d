package subscribers_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events/eventtype"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/health"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/registry"
	"spendhook/subscribers/subscriberstest"
)

func TestCreatedSubscriberIsRead(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	in := b.Settings("HTTPS://Example.com:443/hook#x")
	in.Name, in.Events = new("Überweisungen 💶"), new([]string{"B", "A_1"})
	made, err := b.Store.Create(t.Context(), b.Company, in)
	noErr(t, err)

	want := subscribers.Subscriber{
		UUID: made.UUID, CompanyUUID: b.Company, Name: *in.Name, CallbackURL: "https://example.com/hook",
		Events: *in.Events, Enabled: true, Secrets: made.Secrets,
		CreatedAt: b.Now().UTC(), UpdatedAt: b.Now().UTC(), Revision: made.Revision,
	}
	if diff := cmp.Diff(want, made, cmpopts.IgnoreUnexported(subscribers.Subscriber{}, subscribers.SigningKeys{})); diff != "" {
		t.Errorf("created (-want +got):\n%s", diff)
	}
	read, err := b.Store.Get(t.Context(), b.Company, made.UUID)
	noErr(t, err)
	if diff := cmp.Diff(made, read, cmpopts.IgnoreUnexported(subscribers.Subscriber{}, subscribers.SigningKeys{})); diff != "" {
		t.Errorf("read (-created +read):\n%s", diff)
	}
	if made.Secrets[0].Key.Reveal() != read.Secrets[0].Key.Reveal() {
		t.Error("another secret was read than created")
	}
}

func TestTimesHaveTheStoredPrecision(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.Store = subscribers.NewStore(subscribers.StoreOptions{Client: b.Redis, Keyring: sealtest.Keyring()}) // the real clock
	made := b.Create(t, "https://example.com/")
	read, err := b.Store.Get(t.Context(), b.Company, made.UUID)
	noErr(t, err)
	if diff := cmp.Diff(made, read, cmpopts.IgnoreUnexported(subscribers.Subscriber{}, subscribers.SigningKeys{})); diff != "" {
		t.Errorf("read (-created +read):\n%s", diff)
	}
}

func TestCreateDisabled(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	in := b.Settings("https://example.com/")
	in.Enabled = new(bool)
	s, err := b.Store.Create(t.Context(), b.Company, in)
	noErr(t, err)
	if s.Enabled || s.DisabledReason != subscribers.ReasonManual || s.DisabledAt == nil {
		t.Errorf("enabled %v, reason %q at %v", s.Enabled, s.DisabledReason, s.DisabledAt)
	}
}

func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{Catalogue: eventtype.NewCatalogue(nil, true)})
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprintf("E%d", i)
	}
	for want, edit := range map[string]func(*subscribers.Settings){
		"name REQUIRED":                 func(c *subscribers.Settings) { c.Name = new(" ") },
		"name INVALID":                  func(c *subscribers.Settings) { c.Name = new("a\x00b") },
		"name TOO_LONG":                 func(c *subscribers.Settings) { c.Name = new(strings.Repeat("ü", 201)) },
		"callbackUrl REQUIRED":          func(c *subscribers.Settings) { c.CallbackURL = new("") },
		"callbackUrl INVALID":           func(c *subscribers.Settings) { c.CallbackURL = new("http://example.com") },
		"headers.X-A INVALID":           func(c *subscribers.Settings) { c.Headers = map[string]*secret.Text{"X-A": nil} },
		"events REQUIRED":               func(c *subscribers.Settings) { c.Events = nil },
		"events TOO_MANY":               func(c *subscribers.Settings) { c.Events = &many },
		"/events/0 REQUIRED":            func(c *subscribers.Settings) { c.Events = new([]string{""}) },
		"/events/0 INVALID":             func(c *subscribers.Settings) { c.Events = new([]string{"payment paid"}) },
		"/events/1 INVALID":             func(c *subscribers.Settings) { c.Events = new([]string{"SUBSCRIBER_DISABLED", "SUBSCRIBER_*"}) },
		"/events/2 INVALID":             func(c *subscribers.Settings) { c.Events = new([]string{"PAYMENT_PAID", "*", "P*D"}) },
		"/events/1 UNKNOWN_EVENT_TYPE":  func(c *subscribers.Settings) { c.Events = new([]string{"PAYMENT_*", "NOT_*"}) },
		"/events/1 DUPLICATE":           func(c *subscribers.Settings) { c.Events = new([]string{"PAYMENT_PAID", "PAYMENT_PAID"}) },
		"/events/0 UNKNOWN_EVENT_TYPE":  func(c *subscribers.Settings) { c.Events = new([]string{"NOT_THERE"}) },
		"name REQUIRED, events INVALID": nil,
	} {
		in := b.Settings("https://example.com/")
		if edit == nil {
			in.Name, in.Events, want = new(""), new([]string{"-A"}), "name REQUIRED, /events/0 INVALID"
		} else {
			edit(&in)
		}
		_, err := b.Store.Create(t.Context(), b.Company, in)
		if got := subscriberstest.Codes(t, err); got != want {
			t.Errorf("codes = %s, want %s", got, want)
		}
	}
	_, err := b.Store.Create(t.Context(), uuid.Nil, b.Settings("https://example.com/"))
	if got := subscriberstest.Codes(t, err); got != "companyUuid REQUIRED" {
		t.Errorf("codes without a company = %s", got)
	}
	if n := b.Redis.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}

func TestLongestNamesAreAccepted(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	in := b.Settings("https://example.com/")
	in.Name = new(strings.Repeat("ü", 200))
	in.Events = new([]string{"A" + strings.Repeat("_", 127)})
	_, err := b.Store.Create(t.Context(), b.Company, in)
	noErr(t, err)
	(*in.Events)[0] += "_"
	_, err = b.Store.Create(t.Context(), b.Company, in)
	if got := subscriberstest.Codes(t, err); got != "/events/0 INVALID" {
		t.Errorf("codes = %s", got)
	}
}

func TestOneURLIsCreatedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	errs := make([]error, 50)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = b.Store.Create(t.Context(), b.Company, b.Settings(fmt.Sprintf("https://example.com/a#%d", i)))
		})
	}
	wg.Wait()
	created := 0
	for _, err := range errs {
		if err == nil {
			created++
		} else if !errors.Is(err, subscribers.ErrConflict) {
			t.Errorf("error = %v, want ErrConflict", err)
		}
	}
	_, total, err := b.Registry().List(t.Context(), registry.Filter{Company: &b.Company})
	noErr(t, err)
	if created != 1 || total != 1 {
		t.Errorf("%d creates succeeded, %d subscribers are listed", created, total)
	}
}

func TestTwoCompaniesMayShareAURL(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.Create(t, "https://example.com/")
	in := b.Settings("https://example.com/")
	_, err := b.Store.Create(t.Context(), uuid.New(), in)
	noErr(t, err)
}

func TestQuotaHoldsUnderConcurrency(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{MaxPerCompany: 7})
	errs := make([]error, 30)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = b.Store.Create(t.Context(), b.Company, b.Settings(fmt.Sprintf("https://example.com/%d", i)))
		})
	}
	wg.Wait()
	refused := 0
	for _, err := range errs {
		if errors.Is(err, subscribers.ErrQuota) {
			refused++
		} else if err != nil {
			t.Errorf("error = %v, want ErrQuota", err)
		}
	}
	if refused != 23 {
		t.Errorf("%d of 30 refused, want 23", refused)
	}
	all, _, err := b.Registry().List(t.Context(), registry.Filter{Company: &b.Company})
	noErr(t, err)
	noErr(t, b.Store.Delete(t.Context(), b.Company, all[0].UUID))
	b.Create(t, "https://example.com/again")
}

func TestForeignCompanyFindsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/")
	other := uuid.New()
	_, err := b.Store.Get(t.Context(), other, s.UUID)
	wantErr(t, err, subscribers.ErrNotFound)
	wantErr(t, b.Store.Delete(t.Context(), other, s.UUID), subscribers.ErrNotFound)
	_, err = b.Store.Update(t.Context(), other, s.UUID, subscribers.Settings{})
	wantErr(t, err, subscribers.ErrNotFound)
	_, err = b.Store.RotateSecret(t.Context(), other, s.UUID)
	wantErr(t, err, subscribers.ErrNotFound)
	_, err = b.Store.DisableFailing(t.Context(), other, s.UUID)
	wantErr(t, err, subscribers.ErrNotFound)
}

// A deletion leaves the version, the signing key, and for a while a mark by which the deliveries that
// wait are cancelled.
func TestDeleteLeavesTheVersionTheSigningKeyAndAMark(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/?a=1&b=<2>")
	sample := health.Sample{Company: b.Company, Subscriber: s.UUID, TrailingFailures: 1, At: b.Now()}
	noErr(t, health.New(health.Options{Client: b.Redis}).Record(t.Context(), []health.Sample{sample}, health.Policy{})[0].Err)
	noErr(t, b.Store.Delete(t.Context(), b.Company, s.UUID))
	wantErr(t, b.Store.Delete(t.Context(), b.Company, s.UUID), subscribers.ErrNotFound)
	_, err := b.Store.Get(t.Context(), b.Company, s.UUID)
	wantErr(t, err, subscribers.ErrNotFound)

	keys := slices.DeleteFunc(b.Redis.Keys(t.Context(), "*").Val(), func(key string) bool {
		return strings.HasSuffix(key, "}:clock") || strings.HasSuffix(key, "}:told")
	})
	slices.SortFunc(keys, func(a, b string) int { return len(a) - len(b) })
	if len(keys) != 2 || keys[0] != layout.CompanyKey(b.Company) || !strings.HasSuffix(keys[1], "}:es:"+b.Company.String()+"/"+s.UUID.String()) {
		t.Fatalf("keys left: %v", keys)
	}
	if ttl := b.Redis.TTL(t.Context(), keys[1]).Val(); ttl <= 0 {
		t.Errorf("the mark expires in %v", ttl)
	}
	left := slices.Sorted(maps.Keys(b.Redis.HGetAll(t.Context(), keys[0]).Val()))
	if !slices.Equal(left, []string{layout.SigningKeysField, layout.VersionField}) {
		t.Errorf("fields left: %v", left)
	}
	b.Create(t, "https://example.com/?a=1&b=<2>")
}

// A version must never be assigned twice.
func TestVersionOnlyGrows(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	last := b.Version(t)
	step := func(what string, err error) {
		t.Helper()
		noErr(t, err)
		v := b.Version(t)
		if v <= last {
			t.Errorf("%s: version %d after %d", what, v, last)
		}
		last = v
	}
	s := b.Create(t, "https://example.com/")
	step("create", nil)
	name := "Other"
	_, err := b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Name: &name})
	step("update", err)
	_, err = b.Store.AddEvent(t.Context(), b.Company, s.CallbackURL, "ANOTHER")
	step("add event", err)
	_, err = b.Store.RemoveEvent(t.Context(), b.Company, s.CallbackURL, "ANOTHER")
	step("remove event", err)
	_, err = b.Store.RotateSecret(t.Context(), b.Company, s.UUID)
	step("rotate", err)
	_, err = b.Store.DisableFailing(t.Context(), b.Company, s.UUID)
	step("disable", err)
	step("delete", b.Store.Delete(t.Context(), b.Company, s.UUID))
	b.Create(t, "https://example.com/")
	step("create after the last was deleted", nil)

	noErr(t, b.Redis.FlushDB(t.Context()).Err())
	b.Create(t, "https://example.com/")
	step("create after the version was lost", nil)

	ahead := last + time.Hour.Milliseconds() // as if Redis's clock had stepped back
	noErr(t, b.Redis.HSet(t.Context(), layout.CompanyKey(b.Company), "v", ahead).Err())
	last = ahead
	b.Create(t, "https://example.com/2")
	step("create with a slow clock", nil)
}

func TestUnavailableRedisIsAWrappedError(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	// A large pool: past as many failed dials go-redis dials on in the background.
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: server.Socket(), PoolSize: 1000, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { noErr(t, client.Close()) })
	b := &bundle{subscriberstest.On(client, subscribers.StoreOptions{})}
	s := b.Create(t, "https://example.com/")
	before := b.Redis.HGetAll(t.Context(), layout.CompanyKey(b.Company)).Val()

	server.Kill()
	for what, call := range everyCall(t, b, s) {
		err := call()
		if err == nil || errors.Is(err, subscribers.ErrNotFound) || errors.Is(err, subscribers.ErrConflict) {
			t.Errorf("%s: error = %v, want Redis's", what, err)
		}
	}
	server.Restart()
	after, err := server.Client().HGetAll(t.Context(), layout.CompanyKey(b.Company)).Result()
	noErr(t, err)
	if diff := cmp.Diff(before, after, cmpopts.IgnoreUnexported(subscribers.Subscriber{}, subscribers.SigningKeys{})); diff != "" || len(after) != 3 {
		t.Errorf("stored (-before +after):\n%s", diff)
	}
}

func everyCall(t *testing.T, b *bundle, s subscribers.Subscriber) map[string]func() error {
	t.Helper()
	ctx, name := t.Context(), "Other"
	return map[string]func() error{
		"create": func() error {
			_, err := b.Store.Create(ctx, b.Company, b.Settings("https://example.com/2"))
			return err
		},
		"get": func() error { _, err := b.Store.Get(ctx, b.Company, s.UUID); return err },
		"update": func() error {
			_, err := b.Store.Update(ctx, b.Company, s.UUID, subscribers.Settings{Name: &name})
			return err
		},
		"add":     func() error { _, err := b.Store.AddEvent(ctx, b.Company, s.CallbackURL, "A"); return err },
		"remove":  func() error { _, err := b.Store.RemoveEvent(ctx, b.Company, s.CallbackURL, "PAYMENT_PAID"); return err },
		"rotate":  func() error { _, err := b.Store.RotateSecret(ctx, b.Company, s.UUID); return err },
		"disable": func() error { _, err := b.Store.DisableFailing(ctx, b.Company, s.UUID); return err },
		"delete":  func() error { return b.Store.Delete(ctx, b.Company, s.UUID) },
		"list":    func() error { _, _, err := b.Registry().List(ctx, registry.Filter{}); return err },
		"current": func() error { _, err := b.Registry().Current(ctx, b.Company); return err },
	}
}

func TestDamagedRecordTellsNoSecret(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/")
	raw := `{"secrets":[{"key":"whsec_hunter2"`
	noErr(t, b.Redis.HSet(t.Context(), layout.CompanyKey(b.Company), s.UUID.String(), raw).Err())
	_, err := b.Store.Get(t.Context(), b.Company, s.UUID)
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error = %v", err)
	}
}

func TestRefusedHostIsInvalidAndWritesNothing(t *testing.T) {
	t.Parallel()
	var asked []string
	b := setup(t, subscribers.StoreOptions{Policy: callback.Policy{
		Resolve: func(_ context.Context, host string) error {
			asked = append(asked, host)
			return errors.New("10.0.0.7 is private")
		},
	}})
	_, err := b.Store.Create(t.Context(), b.Company, b.Settings("https://Internal.example:8443/a"))
	if got := subscriberstest.Codes(t, err); got != "callbackUrl CALLBACK_URL_REFUSED" {
		t.Errorf("codes = %s", got)
	}
	if strings.Contains(err.Error(), "10.0.0.7") {
		t.Errorf("the error contains the address: %v", err)
	}
	if len(asked) != 1 || asked[0] != "internal.example" {
		t.Errorf("asked about %q", asked)
	}
	if n := b.Redis.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}
