package seal_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"spendhook/internal/seal"
)

func key(id string, fill byte) seal.Key {
	k := seal.Key{ID: id}
	copy(k.Secret[:], bytes.Repeat([]byte{fill}, 32))
	return k
}

func ring(t *testing.T, current seal.Key, older ...seal.Key) *seal.Keyring {
	t.Helper()
	r, err := seal.New(current, older...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sealed(t *testing.T, r *seal.Keyring, plain, context string) string {
	t.Helper()
	text, err := r.Seal([]byte(plain), context)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestOpenGivesBackWhatWasSealed(t *testing.T) {
	t.Parallel()
	r := ring(t, key("a", 1))
	rapid.Check(t, func(t *rapid.T) {
		plain := rapid.SliceOf(rapid.Byte()).Draw(t, "plain")
		context := rapid.String().Draw(t, "context")
		text, err := r.Seal(plain, context)
		if err != nil {
			t.Fatal(err)
		}
		if !seal.IsSealed(text) || seal.KeyID(text) != r.CurrentID() {
			t.Errorf("%q is not sealed under the current key", text)
		}
		if strings.Trim(text, ":abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			t.Errorf("%q is not plain printable text", text)
		}
		got, err := r.Open(text, context)
		if err != nil || !bytes.Equal(got, plain) {
			t.Errorf("opened %q, %v", got, err)
		}
	})
}

func TestSealedValuesHideAndDiffer(t *testing.T) {
	t.Parallel()
	r := ring(t, key("a", 1))
	const secret = "whsec_in-clear-nowhere"
	one, two := sealed(t, r, secret, "place"), sealed(t, r, secret, "place")
	if one == two {
		t.Error("the same value is sealed twice to the same text: the nonce is not random")
	}
	raw, _ := base64.RawURLEncoding.DecodeString(one[strings.LastIndex(one, ":")+1:])
	if strings.Contains(one, secret) || bytes.Contains(raw, []byte(secret)) {
		t.Error("the sealed value holds the secret")
	}
}

func TestAValueOpensInItsPlaceOnly(t *testing.T) {
	t.Parallel()
	r := ring(t, key("a", 1))
	text := sealed(t, r, "secret", "company 1")
	if _, err := r.Open(text, "company 2"); !errors.Is(err, seal.ErrDamaged) {
		t.Errorf("in another place: %v, want ErrDamaged", err)
	}
}

func TestAChangedValueDoesNotOpen(t *testing.T) {
	t.Parallel()
	r := ring(t, key("a", 1))
	text := sealed(t, r, "secret", "place")
	for i := range text {
		for _, with := range []byte{'A', 'B', '='} {
			changed := text[:i] + string(with) + text[i+1:]
			if changed == text {
				continue
			}
			if got, err := r.Open(changed, "place"); err == nil {
				t.Errorf("opened %q to %q", changed, got)
			}
		}
		if _, err := r.Open(text[:i], "place"); err == nil {
			t.Errorf("opened the first %d bytes", i)
		}
	}
}

func TestOlderKeysOpenAndAreStale(t *testing.T) {
	t.Parallel()
	old := sealed(t, ring(t, key("old", 1)), "secret", "place")
	both := ring(t, key("new", 2), key("old", 1))
	if got, err := both.Open(old, "place"); err != nil || string(got) != "secret" {
		t.Errorf("opened %q, %v", got, err)
	}
	stale := func(text string) bool { return seal.KeyID(text) != both.CurrentID() }
	if !stale(old) || !stale("whsec_clear") || !stale("") {
		t.Error("what is not under the current key is not stale")
	}
	if fresh := sealed(t, both, "secret", "place"); seal.KeyID(fresh) != "new" || both.CurrentID() != "new" {
		t.Errorf("%q is not sealed under the new key", fresh)
	}
}

func TestAMissingKeyIsNamedAndNothingElse(t *testing.T) {
	t.Parallel()
	text := sealed(t, ring(t, key("old", 1)), "secret", "place")
	_, err := ring(t, key("new", 2)).Open(text, "place")
	if !errors.Is(err, seal.ErrUnknownKey) || !strings.Contains(err.Error(), "old") {
		t.Errorf("%v does not say that key old is missing", err)
	}
	if strings.Contains(err.Error(), text[len(text)-20:]) {
		t.Errorf("%v repeats the value", err)
	}
}

// A key that has the right id but other bytes must not pass for the right one.
func TestTheWrongKeyUnderARightIDOpensNothing(t *testing.T) {
	t.Parallel()
	text := sealed(t, ring(t, key("a", 1)), "secret", "place")
	if _, err := ring(t, key("a", 2)).Open(text, "place"); !errors.Is(err, seal.ErrDamaged) {
		t.Errorf("%v, want ErrDamaged", err)
	}
}

func TestClearTextIsNotSealed(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "whsec_AAAA", "sealed1:", "sealed1:a", "sealed1::x", "sealed1:a b:x", "sealed1:" + strings.Repeat("a", 65) + ":x"} {
		if seal.IsSealed(text) {
			t.Errorf("%q passes for sealed", text)
		}
		if _, err := ring(t, key("a", 1)).Open(text, ""); !errors.Is(err, seal.ErrDamaged) {
			t.Errorf("Open(%q): %v, want ErrDamaged", text, err)
		}
	}
}

func TestNewRefusesAKeyGivenTwice(t *testing.T) {
	t.Parallel()
	if _, err := seal.New(key("a", 1), key("a", 2)); err == nil {
		t.Error("two keys of one id are accepted")
	}
}

func TestParseKey(t *testing.T) {
	t.Parallel()
	raw := bytes.Repeat([]byte{0xfb, 0xff}, 16)
	if got, err := seal.ParseKey(" " + base64.StdEncoding.EncodeToString(raw) + "\n"); err != nil || got.Secret != [32]byte(raw) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "secret-passphrase", base64.StdEncoding.EncodeToString(raw[:31]), base64.StdEncoding.EncodeToString(append(raw, 1))} {
		if _, err := seal.ParseKey(text); err == nil || (text != "" && strings.Contains(err.Error(), text)) {
			t.Errorf("ParseKey(%q): %v", text, err)
		}
	}
}

func TestNewKeysDifferAndParse(t *testing.T) {
	t.Parallel()
	one, err := seal.ParseKey(seal.NewKeyText())
	if err != nil {
		t.Fatal(err)
	}
	two, err := seal.ParseKey(seal.NewKeyText())
	if err != nil || one == two || one.ID == two.ID {
		t.Errorf("%v, %v: %v", one, two, err)
	}
}

func TestAKeyPrintsItsIDAlone(t *testing.T) {
	t.Parallel()
	k := key("a", 0x41)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x", "%q"} {
		if got := fmt.Sprintf(verb, k); got != "key a" {
			t.Errorf("%s: %s", verb, got)
		}
	}
}
