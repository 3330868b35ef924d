package storage_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/reimbursements"
	"spendhook/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	acme, ann = storagetest.Acme, storagetest.Ann
	request   = cards.Request{Type: "VIRTUAL", Alias: "Travel", UserUUID: ann}
)

func create(t *testing.T, s *cards.Store) cards.Card {
	t.Helper()
	return storagetest.Must(s.CreateCard(t.Context(), acme, request, cards.Once{}))(t)
}

func TestDatabaseOutage(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	db := storagetest.Open(t, storage.Options{URL: server.URL()})
	storagetest.LoadCompanies(t, db)
	s := cards.New(db, nil)
	card := create(t, s)
	server.Stop()
	var took []time.Duration
	for op, call := range map[string]func() error{
		"ping": func() error { return db.Ping(t.Context()) },
		"read": func() error { _, err := s.Card(t.Context(), acme, card.UUID); return err },
		"list": func() error {
			_, _, err := reimbursements.New(db).List(t.Context(), reimbursements.Filter{})
			return err
		},
		"create": func() error { _, err := s.CreateCard(t.Context(), acme, request, cards.Once{}); return err },
		"item": func() error {
			_, _, err := cards.New(db, nil).CreateNextCard(t.Context())
			return err
		},
	} {
		start := time.Now()
		if err := call(); !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("%s: %v", op, err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	if took[len(took)/2] > 4*time.Second || took[len(took)-1] > 20*time.Second { // a busy machine adds something
		t.Errorf("it took %s, want 2 s", took)
	}
	server.Restart()
	if got := storagetest.Must(s.Card(t.Context(), acme, card.UUID))(t); got.Name != card.Name {
		t.Errorf("read %+v", got)
	}
}

// A server that accepts connections and does not answer is unavailable.
func TestHangingDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := storagetest.Must(storage.Open(storage.Options{URL: "postgres://u@/d?sslmode=disable&host=" + dir, Timeout: 50 * time.Millisecond}))(t)
	defer s.Close()
	storagetest.WantError(t, s.Migrate(t.Context()), storage.ErrUnavailable)
	storagetest.WantError(t, s.Ping(t.Context()), storage.ErrUnavailable)
}

func TestTooSlowIsUnavailableAndCancelledIsNot(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := cards.New(db, nil)
		late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
		defer cancel()
		_, err := s.Card(late, acme, ann)
		storagetest.WantError(t, err, storage.ErrUnavailable)
		_, err = s.LockCard(late, acme, ann, true)
		storagetest.WantError(t, err, storage.ErrUnavailable)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err = s.Card(gone, acme, ann); errors.Is(err, storage.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("error = %v", err)
		}
	})
}

func TestNothingWorksBeforeMigrate(t *testing.T) {
	t.Parallel()
	db := storagetest.Must(storage.Open(storage.Options{DataDir: t.TempDir()}))(t)
	defer db.Close()
	s := cards.New(db, nil)
	_, err := s.Card(t.Context(), acme, ann)
	storagetest.WantError(t, err, storage.ErrUnavailable)
	storagetest.WantError(t, s.CancelCard(t.Context(), acme, ann), storage.ErrUnavailable)
	_, _, err = s.Cards(t.Context(), cards.Filter{})
	storagetest.WantError(t, err, storage.ErrUnavailable)
}

func TestManyProcessesMigrateAtOnce(t *testing.T) {
	t.Parallel()
	dir, url := t.TempDir(), pgtest.New(t)
	var run []func()
	for range 4 {
		for _, o := range []storage.Options{{DataDir: dir}, {URL: url}} {
			o.Timeout = 20 * time.Second
			s := storagetest.Must(storage.Open(o))(t)
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
	storagetest.Race(run...)
}

func TestInvalidOptionsAreRefused(t *testing.T) {
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
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var id uuid.UUID
	for i := range 2 {
		db := storagetest.Open(t, storage.Options{DataDir: dir, FullSync: true})
		s := cards.New(db, nil)
		if i == 0 {
			storagetest.LoadCompanies(t, db)
			id = create(t, s).UUID
		}
		if got := storagetest.Must(s.Card(t.Context(), acme, id))(t); got.UUID != id {
			t.Errorf("card = %+v", got)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The history has its own file, and its own tables and versions in PostgreSQL.
func TestTheHistoryIsApart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := storage.Open(storage.Options{DataDir: dir, History: true, MustExist: true}); err == nil || !strings.Contains(err.Error(), "history.db") {
		t.Errorf("opened a missing history: %v", err)
	}
	for name, o := range map[string]storage.Options{"sqlite": {DataDir: dir}, "postgres": {URL: pgtest.New(t)}} {
		spend, history := o, o
		history.History = true
		for i, opts := range []storage.Options{spend, history, spend} {
			db := storagetest.Must(storage.Open(opts))(t)
			if outdated, err := db.Outdated(t.Context()); err != nil || outdated != (i < 2) {
				t.Errorf("%s, %d: outdated is %v, %v", name, i, outdated, err)
			}
			db.Close()
			storagetest.Open(t, opts) // migrates it
		}
	}
	info, err := os.Stat(filepath.Join(dir, "history.db"))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}
