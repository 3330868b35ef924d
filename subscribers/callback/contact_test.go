package callback_test

import (
	"strings"
	"testing"

	"spendhook/internal/invalid"
	"spendhook/internal/secret"
	"spendhook/subscribers/callback"
)

// checked returns the contact that a text is read as, and the code of the problem with it.
func checked(text string, most int) (callback.Contact, string) {
	var problems invalid.Error
	all := callback.Policy{}.CheckContacts(&problems, []secret.Text{secret.Text(text)}, most)
	if len(problems.Fields) > 0 {
		return callback.Contact{}, problems.Fields[0].Field + " " + problems.Fields[0].Code
	}
	return all[0], ""
}

const fiveContacts = 5

func TestContactsAreNormalised(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"ops@example.com":                         "ops@example.com",
		"Ops+Hooks@Example.COM":                   "ops+hooks@example.com",
		"HTTPS://Hooks.slack.com:443/a/b":         "https://hooks.slack.com/***",
		"https://hooks.slack.com/***0123456789ab": "https://hooks.slack.com/***0123456789ab",
	} {
		c, code := checked(given, fiveContacts)
		if code != "" || !strings.HasPrefix(c.Address, want) {
			t.Errorf("%s: %+v %s", given, c, code)
		}
	}
	one, _ := checked("https://hooks.slack.com/services/a?b=c", fiveContacts)
	other, _ := checked("https://hooks.slack.com/services/b", fiveContacts)
	if one.Address == other.Address || strings.Contains(one.Address, "services") || one.URL != "https://hooks.slack.com/services/a?b=c" {
		t.Errorf("%+v %+v", one, other)
	}
}

// A hostile address must not be more than one mailbox, nor a second header or recipient.
func TestHostileContactsAreRefused(t *testing.T) {
	t.Parallel()
	for _, given := range []string{
		"", " ", "ops", "ops@", "@example.com", "ops@localhost", "ops@com", "ops@127.0.0.1", "ops@[127.0.0.1]", "ops@[IPv6:::1]", "ops@2130706433",
		"ops@example.com\r\nBcc: other@example.com", "ops@example.com\n", "\rops@example.com", "ops@exam\x00ple.com", "ops@example.com\x7f",
		"Ops <ops@example.com>", "<ops@example.com>", "ops@example.com (me)", "a@example.com,b@example.com", "a@example.com b@example.com",
		`"a b"@example.com`, `"a\r\nRCPT TO:<b@example.com>"@example.com`, `"a"@example.com`, "a@b@example.com", "a%other.example@example.com", "other.example!a@example.com",
		"öps@example.com", "ops@exämple.com", "/a/b@example.com", "ops..x@example.com", ".ops@example.com",
		strings.Repeat("a", 64) + "@" + strings.Repeat("a.", 100) + "com",
		"http://hooks.slack.com/a", "https://user:pw@hooks.slack.com/a", "https:///a", "javascript://x/%0aalert(1)", "https://hooks.slack.com/a b", "https://hooks.slack.com/\r\nX: y",
		"https://hooks.slack.com/" + strings.Repeat("a", 2048),
	} {
		if c, code := checked(given, fiveContacts); !strings.HasPrefix(code, "/contacts/0 ") {
			t.Errorf("%q: %+v", given, c)
		}
	}
	if _, code := checked("ops@example.com", 0); code != "contacts TOO_MANY" {
		t.Errorf("with a limit of 0: %s", code)
	}
	var problems invalid.Error
	callback.Policy{}.CheckContacts(&problems, []secret.Text{"ops@example.com", "https://a.example/x", "OPS@example.com", "https://A.example/x"}, fiveContacts)
	if len(problems.Fields) != 2 || problems.Fields[0].Field != "/contacts/2" || problems.Fields[1].Code != "DUPLICATE" || problems.Fields[1].Field != "/contacts/3" {
		t.Errorf("twice: %+v", problems.Fields)
	}
}
