package subscribers_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/internal/seal"
	"spendhook/internal/seal/reseal"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/registry"
	"spendhook/subscribers/subscriberstest"
)

// furnished makes three companies with all kinds of sealed values, sealed under the key "old".
func furnished(t *testing.T) (*bundle, []subscribers.Subscriber) {
	t.Helper()
	b := setup(t, subscribers.StoreOptions{})
	b.Store = b.withKeys(sealtest.Ring("old"))
	var all []subscribers.Subscriber
	for range 3 {
		b.Company = uuid.New()
		for i := range 2 {
			in := b.Settings(fmt.Sprintf("https://example.com/%d", i))
			in.Headers = settings(secrets{"Authorization": "Bearer hunter22", "X-B": "another"})
			s, err := b.Store.Create(t.Context(), b.Company, in)
			noErr(t, err)
			s, err = b.Store.RotateSecret(t.Context(), b.Company, s.UUID)
			noErr(t, err)
			all = append(all, s)
		}
		_, err := b.certificates(sealtest.Ring("old")).Set(t.Context(), b.Company, subscriberstest.ClientCertificate(t, b.Now()))
		noErr(t, err)
	}
	return b, all
}

func (b *bundle) certificates(keys *seal.Keyring) *certificate.Store {
	return certificate.New(certificate.Options{Client: b.Redis, Keyring: keys, Now: b.Now})
}

// sealsOf counts what is stored under each key.
func sealsOf(t *testing.T, b *bundle, ids ...string) map[string]int {
	t.Helper()
	found := map[string]int{}
	for _, name := range b.Redis.Keys(t.Context(), "*").Val() {
		var text string
		switch b.Redis.Type(t.Context(), name).Val() {
		case "hash":
			text = fmt.Sprint(b.Redis.HGetAll(t.Context(), name).Val())
		case "string":
			text = b.Redis.Get(t.Context(), name).Val()
		}
		for _, id := range ids {
			found[id] += strings.Count(text, "sealed1:"+id+":")
		}
	}
	return found
}

const total = 6*4 + 3 + 3 // six subscribers, certificates, signing keys

func TestResealSealsEverythingUnderTheCurrentKey(t *testing.T) {
	t.Parallel()
	b, all := furnished(t)
	if got := sealsOf(t, b, "old")["old"]; got != total {
		t.Fatalf("%d values are sealed under the old key, want %d: the test is not furnished", got, total)
	}
	both := b.withKeys(sealtest.Ring("new", "old"))

	look := reseal.Count{DryRun: true}
	noErr(t, both.Reseal(t.Context(), &look))
	if want := map[string]int{"old": total}; !maps.Equal(look.Left, want) || look.Resealed != 0 || look.Seen != 12 {
		t.Errorf("dry run: %+v, want %v left of 12", look, want)
	}
	if sealsOf(t, b, "new")["new"] != 0 {
		t.Error("the dry run wrote")
	}

	b.Redis.AddHook(redistest.Repeats()) // as after lost replies
	var count reseal.Count
	noErr(t, both.Reseal(redistest.Repeated(t.Context()), &count))
	if count.Resealed != 12 || count.Seen != 12 || len(count.Left) != 0 {
		t.Errorf("%+v, want 12 resealed and nothing left", count)
	}
	if got := sealsOf(t, b, "new", "old"); got["new"] != total || got["old"] != 0 {
		t.Errorf("stored: %v", got)
	}
	fresh := b.withKeys(sealtest.Ring("new")) // the old key is gone
	for _, s := range all {
		read, err := fresh.Get(t.Context(), s.CompanyUUID, s.UUID)
		noErr(t, err)
		if read.Unusable() != nil || read.Secrets[0].Key != s.Secrets[0].Key {
			t.Errorf("%s: %v", s.UUID, read.Unusable())
		}
		c, err := b.certificates(sealtest.Ring("new")).Get(t.Context(), s.CompanyUUID)
		noErr(t, err)
		if c.Locked != nil {
			t.Error(c.Locked)
		}
	}

	var again reseal.Count
	noErr(t, fresh.Reseal(t.Context(), &again))
	if again.Resealed != 0 || len(again.Left) != 0 {
		t.Errorf("the second time: %+v", again)
	}
}

func TestResealSealsTheCertificateOfASubscriber(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/")
	_, err := b.certificates(sealtest.Keyring()).Of(s.UUID).Set(t.Context(), b.Company, subscriberstest.ClientCertificate(t, b.Now()))
	noErr(t, err)
	var count reseal.Count
	noErr(t, b.withKeys(sealtest.Ring("new", "test")).Reseal(t.Context(), &count))
	c, err := b.certificates(sealtest.Ring("new")).Of(s.UUID).Get(t.Context(), b.Company)
	noErr(t, err)
	if c.Locked != nil || count.Resealed != 3 || len(count.Left) != 0 {
		t.Errorf("%v, %+v", c.Locked, count)
	}
}

func TestSigningKeysAreChecked(t *testing.T) {
	t.Parallel()
	b, _ := furnished(t) // three companies
	_, err := b.certificates(sealtest.Ring("old")).Set(t.Context(), uuid.New(), subscriberstest.ClientCertificate(t, b.Now()))
	noErr(t, err) // a company without keys
	b.Redis.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "scan" {
			t.Error("all keys are scanned")
		}
		return next(ctx, cmd)
	}})
	for _, c := range []struct {
		keys               *seal.Keyring
		most, read, locked int
	}{
		{sealtest.Ring("old"), 10, 3, 0},
		{sealtest.Ring("new"), 10, 3, 3},
		{sealtest.Ring("new"), 3, 3, 3},
		{sealtest.Ring("new"), 2, 2, 2},
	} {
		read, locked, err := b.withKeys(c.keys).CheckSigningKeys(t.Context(), c.most)
		if err != nil || read != c.read || locked != c.locked {
			t.Errorf("%+v: %d, %d, %v", c, read, locked, err)
		}
	}
}

func TestResealCountsLockedValuesByKey(t *testing.T) {
	t.Parallel()
	b, all := furnished(t)
	before := b.raw(t, withCompany(b, all[5]))
	var count reseal.Count
	noErr(t, b.withKeys(sealtest.Ring("new")).Reseal(t.Context(), &count))
	if want := map[string]int{"old": total}; !maps.Equal(count.Left, want) || count.Resealed != 0 {
		t.Errorf("%+v, want %v left", count, want)
	}
	if b.raw(t, all[5]) != before {
		t.Error("what cannot be decrypted was rewritten")
	}
}

func withCompany(b *bundle, s subscribers.Subscriber) subscribers.Subscriber {
	b.Company = s.CompanyUUID
	return s
}

var errCut = errors.New("cut off")

// Reseal is interrupted after each number of commands in turn and run again. All values can be
// read in between, and all are resealed at the end.
func TestResealCanBeInterrupted(t *testing.T) {
	t.Parallel()
	b, all := furnished(t)
	both := b.withKeys(sealtest.Ring("new", "old"))
	left, runs := -1, 0
	cutter := b.Redis.(*redis.Client)
	cutter.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if left == 0 {
			return errCut
		}
		left--
		return next(ctx, cmd)
	}})
	for budget := 1; ; budget++ {
		left = budget
		var count reseal.Count
		err := both.Reseal(t.Context(), &count)
		left = -1
		for _, s := range all {
			read, readErr := both.Get(t.Context(), s.CompanyUUID, s.UUID)
			noErr(t, readErr)
			if read.Unusable() != nil || read.Secrets[0].Key != s.Secrets[0].Key {
				t.Fatalf("after %d commands: %v", budget, read.Unusable())
			}
		}
		if err == nil {
			break
		}
		if !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		runs++
	}
	if got := sealsOf(t, b, "new", "old"); got["new"] != total || got["old"] != 0 || runs < 5 {
		t.Errorf("after %d interruptions: %v", runs, got)
	}
}

func TestResealNeverOverwritesAChange(t *testing.T) {
	t.Parallel()
	b, all := furnished(t)
	victim := withCompany(b, all[3])
	old := b.withKeys(sealtest.Ring("old")) // a replica that was not restarted yet
	changed := 0
	b.Redis.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		// Change the record between read and write of the reseal, the first time.
		if text := fmt.Sprint(cmd.Args()...); changed < 1 && strings.HasPrefix(cmd.Name(), "eval") && strings.Contains(text, victim.UUID.String()) && strings.Contains(text, "sealed1:new") {
			changed++
			_, err := old.Update(ctx, victim.CompanyUUID, victim.UUID, subscribers.Settings{Name: new(fmt.Sprint("Changed ", changed))})
			noErr(t, err)
		}
		return next(ctx, cmd)
	}})
	var first, second reseal.Count
	noErr(t, b.withKeys(sealtest.Ring("new", "old")).Reseal(t.Context(), &first))
	if len(first.Left) != 1 {
		t.Errorf("the changed record is not counted as left: %+v", first)
	}
	noErr(t, b.withKeys(sealtest.Ring("new", "old")).Reseal(t.Context(), &second))
	read, err := b.withKeys(sealtest.Ring("new")).Get(t.Context(), victim.CompanyUUID, victim.UUID)
	noErr(t, err)
	if changed != 1 || read.Name != "Changed 1" || read.Unusable() != nil || len(second.Left) != 0 {
		t.Errorf("changed %d times, read %q, %v; %+v", changed, read.Name, read.Unusable(), second)
	}
}

func TestResealRaisesTheVersion(t *testing.T) {
	t.Parallel()
	b, all := furnished(t)
	withCompany(b, all[0])
	copies := registry.New(b.Redis, sealtest.Ring("new"), 0)
	locked, err := copies.Current(t.Context(), b.Company)
	noErr(t, err)
	if locked[1].Unusable() == nil {
		t.Fatal("the registry opens what it has no key of")
	}
	noErr(t, b.withKeys(sealtest.Ring("new", "old")).Reseal(t.Context(), &reseal.Count{}))
	open, err := copies.Current(t.Context(), b.Company)
	noErr(t, err)
	if err := open[1].Unusable(); err != nil {
		t.Error(err)
	}
}
