package subscribers_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/reseal"
	"spendhook/internal/seal/sealtest"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/subscriberstest"
)

const (
	mailContact = "ops@example.com"
	chatContact = "https://hooks.slack.com/services/hunter22"
)

func contacts(all ...secret.Text) subscribers.Settings { return subscribers.Settings{Contacts: &all} }

func withMail() subscribers.StoreOptions {
	return subscribers.StoreOptions{Mail: true}
}

// indexed reports whether the contacts of a subscriber are told of it.
func (b *bundle) indexed(t *testing.T, s subscribers.Subscriber) bool {
	t.Helper()
	is, err := b.Redis.HExists(t.Context(), layout.ToldKey(partition.Of(b.Company)), b.Company.String()+"/"+s.UUID.String()).Result()
	noErr(t, err)
	return is
}

func TestContactsAreStoredSealedAndIndexed(t *testing.T) {
	t.Parallel()
	b := setup(t, withMail())
	in := b.Settings("https://example.com/a")
	in.Contacts = contacts(mailContact, chatContact).Contacts
	s, err := b.Store.Create(redistest.Repeated(t.Context()), b.Company, in)
	noErr(t, err)
	if raw := b.raw(t, s); strings.Contains(raw, "hunter22") || !strings.Contains(raw, mailContact) {
		t.Errorf("stored: %s", raw)
	}
	if !b.indexed(t, s) {
		t.Error("a new subscriber with contacts is not indexed")
	}
	read, err := b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if read.Contacts[1].URL != chatContact || read.WithoutSecrets().Contacts[1].URL != "" {
		t.Errorf("%+v", read.Contacts)
	}
	// What is shown keeps the URL; another subscriber has none to keep.
	read, err = b.Store.Update(t.Context(), b.Company, s.UUID, contacts(secret.Text(read.Contacts[1].Address)))
	noErr(t, err)
	if len(read.Contacts) != 1 || read.Contacts[0].URL != chatContact {
		t.Errorf("kept: %+v", read.Contacts)
	}
	other := b.Create(t, "https://example.com/b")
	_, err = b.Store.Update(t.Context(), b.Company, other.UUID, contacts(secret.Text(read.Contacts[0].Address)))
	if got := subscriberstest.Codes(t, err); got != "/contacts/0 INVALID" || b.indexed(t, other) {
		t.Errorf("another subscriber: %s", got)
	}
	_, err = b.Store.Update(redistest.Repeated(t.Context()), b.Company, s.UUID, contacts())
	noErr(t, err)
	if !b.indexed(t, s) {
		t.Error("what its contacts were told would never be removed")
	}
	_, err = b.Store.Update(redistest.Repeated(t.Context()), b.Company, s.UUID, contacts(mailContact))
	noErr(t, err)
	if !b.indexed(t, s) {
		t.Error("not indexed with contacts")
	}
}

// Without public_url no contact can confirm, so none is added; the ones from before stay.
func TestNoContactIsAddedWithoutLinks(t *testing.T) {
	t.Parallel()
	b := setup(t, withMail())
	in := b.Settings("https://example.com/a")
	in.Contacts = contacts(mailContact).Contacts
	s, err := b.Store.Create(t.Context(), b.Company, in)
	noErr(t, err)
	without := b.With(subscribers.StoreOptions{Mail: true, NoContacts: true}).Store
	_, err = without.Update(t.Context(), b.Company, s.UUID, contacts(mailContact, chatContact))
	if got := subscriberstest.Codes(t, err); got != "/contacts/1 INVALID" {
		t.Error(got)
	}
	kept, err := without.Update(t.Context(), b.Company, s.UUID, contacts(mailContact))
	if err != nil || len(kept.Contacts) != 1 {
		t.Errorf("%+v, %v", kept.Contacts, err)
	}
}

func TestTheURLOfAContactIsResealed(t *testing.T) {
	t.Parallel()
	b := setup(t, withMail())
	in := b.Settings("https://example.com/a")
	in.Contacts = contacts(mailContact, chatContact).Contacts
	s, err := b.Store.Create(t.Context(), b.Company, in)
	noErr(t, err)
	locked, err := b.withKeys(sealtest.Ring("new")).Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if locked.Contacts[1].Locked == nil || locked.Contacts[0].Locked != nil {
		t.Errorf("without its key: %+v", locked.Contacts)
	}
	var count reseal.Count
	noErr(t, b.withKeys(sealtest.Ring("new", "test")).Reseal(t.Context(), &count))
	if n := sealsOf(t, b, "test")["test"]; n != 0 || len(count.Left) != 0 {
		t.Errorf("%d values under the former key, %v left", n, count.Left)
	}
	read, err := b.withKeys(sealtest.Ring("new")).Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if read.Contacts[1].URL != chatContact {
		t.Errorf("%+v", read.Contacts)
	}
}

func TestAChatAtAPrivateAddressIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{Policy: callback.Policy{Resolve: func(_ context.Context, host string) error {
		if host == "10.0.0.1" {
			return errors.New("private")
		}
		return nil
	}}})
	s := b.Create(t, "https://example.com/a")
	_, err := b.Store.Update(t.Context(), b.Company, s.UUID, contacts("https://chat.example.com/a", "https://10.0.0.1/b"))
	if got := subscriberstest.Codes(t, err); got != "/contacts/1 CONTACT_URL_REFUSED" {
		t.Error(got)
	}
	_, err = b.Store.Update(t.Context(), b.Company, s.UUID, contacts("a@b.example", "a@b.example"))
	if got := subscriberstest.Codes(t, err); got != "/contacts/1 DUPLICATE" {
		t.Error("twice: " + got)
	}
	_, err = b.Store.Update(t.Context(), b.Company, s.UUID, contacts(mailContact))
	if got := subscriberstest.Codes(t, err); got != "/contacts/0 INVALID" {
		t.Error("without smtp.host: " + got)
	}
	_, err = b.With(withMail()).Store.Update(t.Context(), b.Company, s.UUID, contacts(mailContact))
	noErr(t, err)
	_, err = b.Store.Update(t.Context(), b.Company, s.UUID, contacts(mailContact)) // it stays
	noErr(t, err)
}
