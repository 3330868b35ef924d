package storage_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/pgtest"
	"spendhook/storage"
)

func TestDatabaseAwayAndBackAgain(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	s := open(t, storage.Options{URL: server.URL()})
	loadCompanies(t, s)
	card := create(t, s)
	server.Stop()
	var took []time.Duration
	for op, call := range map[string]func() error{
		"ping":   func() error { return s.Ping(t.Context()) },
		"read":   func() error { _, err := s.Card(t.Context(), acme, card.UUID); return err },
		"list":   func() error { _, _, err := s.Reimbursements(t.Context(), storage.ReimbursementFilter{}); return err },
		"create": func() error { _, err := s.CreateCard(t.Context(), acme, request(), storage.Once{}); return err },
		"item":   func() error { _, _, err := s.CreateNextCard(t.Context(), now); return err },
	} {
		start := time.Now()
		if err := call(); !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("%s: %v", op, err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	if took[len(took)/2] > 2*time.Second || took[len(took)-1] > 20*time.Second { // a busy machine may hold up any one
		t.Errorf("it took %s, want 2 s", took)
	}
	server.Restart()
	if got := must(s.Card(t.Context(), acme, card.UUID))(t); got.Name != card.Name {
		t.Errorf("read %+v", got)
	}
}

// A server that takes connections and then says nothing is away as well.
func TestSilentDatabaseIsAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := must(storage.Open(storage.Options{URL: "postgres://u@/d?sslmode=disable&host=" + dir, Timeout: 50 * time.Millisecond}))(t)
	defer s.Close()
	wantError(t, s.Migrate(t.Context()), storage.ErrUnavailable)
	wantError(t, s.Ping(t.Context()), storage.ErrUnavailable)
}

func TestTooSlowIsUnavailableAndCancelledIsNot(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
			defer cancel()
			_, err := s.Card(late, acme, ann)
			wantError(t, err, storage.ErrUnavailable)
			_, err = s.LockCard(late, acme, ann, true)
			wantError(t, err, storage.ErrUnavailable)
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err = s.Card(gone, acme, ann); errors.Is(err, storage.ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Errorf("error = %v", err)
			}
		})
	}
}

func TestNothingWorksBeforeMigrate(t *testing.T) {
	t.Parallel()
	s := must(storage.Open(storage.Options{DataDir: t.TempDir()}))(t)
	defer s.Close()
	_, err := s.Card(t.Context(), acme, ann)
	wantError(t, err, storage.ErrUnavailable)
	wantError(t, s.CancelCard(t.Context(), acme, ann), storage.ErrUnavailable)
	_, _, err = s.Cards(t.Context(), storage.CardFilter{})
	wantError(t, err, storage.ErrUnavailable)
}

func TestManyProcessesMigrateAtOnce(t *testing.T) {
	t.Parallel()
	dir, url := t.TempDir(), pgtest.New(t)
	var run []func()
	for range 4 {
		for _, o := range []storage.Options{{DataDir: dir}, {URL: url}} {
			o.Timeout = 20 * time.Second
			s := must(storage.Open(o))(t)
			t.Cleanup(func() { _ = s.Close() })
			run = append(run, func() {
				if err := s.Migrate(t.Context()); err != nil {
					t.Error(err)
				}
				if err := s.Ping(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	race(run...)
}

func TestOptionsThatCannotBeRight(t *testing.T) {
	t.Parallel()
	for _, o := range []storage.Options{{}, {URL: "postgres://%zz"}, {DataDir: "/dev/null/x"}} {
		if s, err := storage.Open(o); err == nil {
			t.Errorf("opened %+v", o)
			_ = s.Close()
		}
	}
}

func TestDataSurvivesReopening(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "with space?#%")
	id := uuid.New()
	for i := range 2 {
		s := open(t, storage.Options{DataDir: dir, FullSync: true, NewID: func() uuid.UUID { return id }})
		if i == 0 {
			loadCompanies(t, s)
			create(t, s)
		}
		if got := must(s.Card(t.Context(), acme, id))(t); got.UUID != id {
			t.Errorf("card = %+v", got)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDates(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"2026-02-28", "1969-12-31", "2000-02-29"} {
		if d, err := storage.ParseDate(text); err != nil || d.String() != text {
			t.Errorf("%s: %s, %v", text, d, err)
		}
	}
	for _, text := range []string{"", "2026-2-1", "2026-13-01", "2026-02-29", "2026-01-01T00:00:00Z", " 2026-01-01"} {
		if _, err := storage.ParseDate(text); err == nil {
			t.Errorf("%q is taken for a date", text)
		}
	}
}
