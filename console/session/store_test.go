package session_test

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/console/session"
	"spendhook/internal/cursor"
	"spendhook/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func grant(company *uuid.UUID) session.Grant {
	return session.Grant{
		Company: company, Scopes: []string{"events:read", "deliveries:write"}, Lifetime: time.Hour,
		Asker: session.Asker{Subject: "ann", Issuer: "spendhook"},
	}
}

func open(t *testing.T, s *session.Store, g session.Grant) (session.Session, string) {
	t.Helper()
	link, err := s.CreateLink(t.Context(), g)
	if err != nil {
		t.Fatal(err)
	}
	opened, secret, err := s.Open(t.Context(), link.Secret, session.Visitor{Address: "192.0.2.7", Certificate: "abc"})
	if err != nil {
		t.Fatal(err)
	}
	return opened, secret
}

func TestLinkOpensOneSession(t *testing.T) {
	t.Parallel()
	s := session.NewStore(redistest.New(t), nil)
	company := uuid.New()
	link, err := s.CreateLink(t.Context(), grant(&company))
	if err != nil {
		t.Fatal(err)
	}
	if g, err := s.Peek(t.Context(), link.Secret); err != nil || *g.Company != company {
		t.Fatalf("peek: %+v, %v", g, err)
	}
	var opened, refused atomic.Int32
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			switch _, _, err := s.Open(t.Context(), link.Secret, session.Visitor{}); {
			case err == nil:
				opened.Add(1)
			case errors.Is(err, session.ErrNotFound):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	group.Wait()
	if opened.Load() != 1 || refused.Load() != 19 {
		t.Errorf("%d opened, %d refused", opened.Load(), refused.Load())
	}
	if _, err := s.Peek(t.Context(), link.Secret); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("peek at a used link: %v", err)
	}
}

func TestSessionIsWhatItsLinkGrants(t *testing.T) {
	t.Parallel()
	s := session.NewStore(redistest.New(t), nil)
	company := uuid.New()
	g := grant(&company)
	g.ReadOnly = true
	opened, secret := open(t, s, g)
	found, err := s.Find(t.Context(), secret, true)
	if err != nil || found.ID != opened.ID || *found.Company != company || found.Address != "192.0.2.7" || found.Certificate != "abc" {
		t.Fatalf("found %+v, %v", found, err)
	}
	if !found.May("deliveries:write") || found.MayChange("deliveries:write") || found.May("subscribers:read") {
		t.Errorf("the rights of a read-only session: %+v", found)
	}
	for _, wrong := range []string{"", opened.ID.String(), secret + "x", secret[1:]} {
		if _, err := s.Find(t.Context(), wrong, true); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

func TestSessionEnds(t *testing.T) {
	t.Parallel()
	client, now := redistest.New(t), time.Now()
	clock := atomic.Pointer[time.Time]{}
	clock.Store(&now)
	s := session.NewStore(client, func() time.Time { return *clock.Load() })
	opened, secret := open(t, s, grant(nil))
	// Redis ends idle sessions by its own clock: the time to live of the key is the idle time.
	key := "sh:{console}:session:" + opened.ID.String()
	if err := client.PExpire(t.Context(), key, time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Find(t.Context(), secret, false); err != nil {
		t.Fatal(err)
	}
	if left := client.PTTL(t.Context(), key).Val(); left > time.Minute {
		t.Errorf("after Find without use, the session expires in %v", left)
	}
	if _, err := s.Find(t.Context(), secret, true); err != nil {
		t.Fatal(err)
	}
	if left := client.PTTL(t.Context(), key).Val(); left < session.IdleTime-time.Minute || left > session.IdleTime {
		t.Errorf("after Find with use, the session expires in %v", left)
	}
	clock.Store(new(opened.ExpiresAt.Add(-time.Millisecond)))
	if _, err := s.Find(t.Context(), secret, true); err != nil {
		t.Fatal(err)
	}
	clock.Store(&opened.ExpiresAt)
	if _, err := s.Find(t.Context(), secret, true); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("past its end: %v", err)
	}
	if page, err := s.List(t.Context(), session.Filter{}); err != nil || len(page.Items) != 0 {
		t.Errorf("past its end: %+v, %v", page, err)
	}
}

func TestSessionsAreListedAndEnded(t *testing.T) {
	t.Parallel()
	s := session.NewStore(redistest.New(t), nil)
	acme, bolt := uuid.New(), uuid.New()
	mine, secret := open(t, s, grant(&acme))
	other := grant(&acme)
	other.Asker.ClientID = "another"
	second, _ := open(t, s, other)
	third, _ := open(t, s, grant(&bolt))
	open(t, s, grant(nil))
	if got := all(t, s, session.Filter{Size: 1}); len(got) != 4 {
		t.Errorf("all: %v", got)
	}
	if got := all(t, s, session.Filter{Company: &acme, Size: 1}); len(got) != 2 {
		t.Errorf("of a company: %v", got)
	}
	if got := all(t, s, session.Filter{Company: &acme, Asker: &mine.Asker}); len(got) != 1 || got[0].ID != mine.ID {
		t.Errorf("of an asker: %v", got)
	}
	if _, err := s.List(t.Context(), session.Filter{Company: &acme, Cursor: "x"}); !errors.Is(err, cursor.ErrBad) {
		t.Errorf("a bad cursor: %v", err)
	}
	if _, err := s.End(t.Context(), &acme, third.ID, nil); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("end another company's: %v", err)
	}
	if _, err := s.End(t.Context(), &acme, second.ID, &mine.Asker); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("end another asker's: %v", err)
	}
	if ended, err := s.End(t.Context(), &acme, mine.ID, &mine.Asker); err != nil || ended.ID != mine.ID {
		t.Fatalf("end: %+v, %v", ended, err)
	}
	if _, err := s.Find(t.Context(), secret, true); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("an ended session: %v", err)
	}
	if _, err := s.End(t.Context(), &acme, mine.ID, nil); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("end it again: %v", err)
	}
	if got := all(t, s, session.Filter{Company: &acme}); len(got) != 1 {
		t.Errorf("after its end: %v", got)
	}
}

func all(t *testing.T, s *session.Store, f session.Filter) (found []session.Session) {
	t.Helper()
	for {
		page, err := s.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, page.Items...)
		if f.Cursor = page.Next; f.Cursor == "" {
			return found
		}
	}
}

func TestSessionsOfACompanyAreBounded(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	client.AddHook(redistest.Repeats())
	ctx := redistest.Repeated(t.Context()) // a lost reply neither uses up a link in vain nor counts twice
	s := session.NewStore(client, nil)
	acme, bolt := uuid.New(), uuid.New()
	links := make([]session.Link, 501)
	var err error
	for i := range links[:500] {
		if links[i], err = s.CreateLink(ctx, grant(&acme)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err = s.CreateLink(ctx, grant(&acme)); !errors.Is(err, session.ErrTooMany) {
		t.Fatalf("one link too many: %v", err)
	}
	if _, err = s.CreateLink(ctx, grant(&bolt)); err != nil {
		t.Errorf("another company's: %v", err)
	}
	var last session.Session
	for _, link := range links[:500] {
		if last, _, err = s.Open(ctx, link.Secret, session.Visitor{}); err != nil {
			t.Fatal(err)
		}
	}
	link, err := s.CreateLink(ctx, grant(&acme)) // used links do not count
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err = s.Open(ctx, link.Secret, session.Visitor{}); !errors.Is(err, session.ErrTooMany) {
		t.Fatalf("one session too many: %v", err)
	}
	if err := client.Del(ctx, "sh:{console}:session:"+last.ID.String()).Err(); err != nil { // as after 30 minutes without use
		t.Fatal(err)
	}
	open(t, s, grant(&acme))
}

func TestGroups(t *testing.T) {
	t.Parallel()
	got := session.Groups([]string{"subscribers:read", "subscribers:write", "operator", "events:read"})
	if want := []string{"subscribers", "audit", "events"}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if got := session.Groups([]string{"operator", "platform"}); !slices.Equal(got, []string{"audit", "events", "clients"}) {
		t.Errorf("%v", got)
	}
	if got := session.Groups([]string{"platform"}); !slices.Equal(got, []string{"events"}) { // it names companies, and documents event types
		t.Errorf("%v", got)
	}
}
