package callback

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/mail"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"spendhook/internal/invalid"
	"spendhook/internal/secret"
)

// maxAddress bounds a mail address, in bytes (RFC 5321, 4.5.3.1.3).
const maxAddress = 254

// Contact is told when its subscriber is about to be disabled, is disabled, and works again.
type Contact struct {
	// Address is a mail address in lower case, or what is shown of the URL of a chat. It tells the contacts of a company apart.
	Address string      `json:"address"`
	URL     secret.Text `json:"-"`            // of a chat: a Slack-compatible incoming webhook, normalised; "" of a mail address
	Sealed  string      `json:"url,omitzero"` // the URL as it is stored; "" when it was opened
	Locked  error       `json:"-"`            // why the URL cannot be decrypted; else nil

	Unknown *jsontext.Value `json:",embed"` // as of a Subscriber
}

// IsMail reports whether the contact is a mail address; else it is a chat.
func (c Contact) IsMail() bool { return !strings.Contains(c.Address, "://") }

// shownURL matches what is shown of the URL of a chat.
var shownURL = regexp.MustCompile(`^https?://[^/]+/\*\*\*[0-9a-f]{12}$`)

// CheckContacts returns the contacts that are given, at most a number: mail addresses, URLs, and what is shown of URLs. It
// adds to problems, and never repeats a URL.
func (p Policy) CheckContacts(problems *invalid.Error, given []secret.Text, most int) []Contact {
	if len(given) > most {
		problems.Add("contacts", "TOO_MANY", "must be at most %d", most)
		return nil
	}
	all := make([]Contact, len(given))
	for i, text := range given {
		field := contactField(i)
		all[i] = p.contact(problems, field, text.Reveal())
		switch {
		case all[i].Address == "":
		case slices.ContainsFunc(all[:i], func(c Contact) bool { return c.Address == all[i].Address }):
			problems.Add(field, "DUPLICATE", "is already in the list")
		}
	}
	return all
}

func contactField(i int) string { return "/contacts/" + strconv.Itoa(i) }

func (p Policy) contact(problems *invalid.Error, field, given string) Contact {
	switch {
	case !strings.Contains(given, "://"):
		address, err := parseMail(given)
		if err != nil {
			problems.Add(field, "INVALID", "%v", err)
		}
		return Contact{Address: address}
	case shownURL.MatchString(given):
		return Contact{Address: given}
	}
	normal := p.normalize(problems, field, given)
	u, err := url.Parse(normal)
	if normal == "" || err != nil {
		return Contact{}
	}
	sum := sha256.Sum256([]byte(normal))
	return Contact{Address: u.Scheme + "://" + u.Host + "/" + HiddenValue + hex.EncodeToString(sum[:6]), URL: secret.Text(normal)}
}

// parseMail returns a mail address in lower case. It refuses what a header or an SMTP server may read as anything but
// one mailbox at a domain of the internet.
func parseMail(text string) (string, error) {
	if len(text) > maxAddress {
		return "", errors.New("must be at most " + strconv.Itoa(maxAddress) + " bytes")
	}
	wrong := errors.New("must be a mail address such as ops@example.com, or a URL that starts with https://")
	parsed, err := mail.ParseAddress(text)
	if err != nil || parsed.Name != "" || parsed.Address != text {
		return "", wrong
	}
	local, domain, _ := strings.Cut(text, "@")
	if strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) || strings.ContainsAny(local, "\"\\%!/") {
		return "", wrong
	}
	host, err := normalizeName(domain)
	if _, literal := netip.ParseAddr(host); err != nil || literal == nil || !strings.Contains(host, ".") {
		return "", wrong
	}
	return strings.ToLower(local) + "@" + host, nil
}

// CheckContactHosts checks the hosts of the chats that CheckContacts has passed, as CheckHost does for a callback URL.
func (p Policy) CheckContactHosts(ctx context.Context, all []Contact) error {
	var problems invalid.Error
	for i, c := range all {
		if c.URL == "" {
			continue
		}
		refused, err := p.refuses(ctx, c.URL.Reveal())
		if err != nil {
			return err
		}
		if refused {
			problems.Add(contactField(i), "CONTACT_URL_REFUSED", notPublic)
		}
	}
	return problems.OrNil()
}

// ChangeContacts returns the contacts after a change to those that CheckContacts has passed. What is shown of a URL keeps
// the URL. Without links to this service no contact is added, and without mail no mail address.
func ChangeContacts(problems *invalid.Error, before, to []Contact, links, mail bool) []Contact {
	var after []Contact
	for i, c := range to {
		at := slices.IndexFunc(before, func(b Contact) bool { return b.Address == c.Address })
		switch {
		case at >= 0 && (c.URL == "" || before[at].Locked == nil):
			c = before[at]
		case !links:
			problems.Add(contactField(i), "INVALID", "cannot be told: the operator of this service has not set public_url, with which links in messages begin")
		case c.IsMail() && !mail:
			problems.Add(contactField(i), "INVALID", "is a mail address, but this service sends no mail: its operator has not set smtp.host")
		case !c.IsMail() && c.URL == "":
			problems.Add(contactField(i), "INVALID", "is what is shown in place of a URL, of which the subscriber has none: send the URL itself")
		}
		after = append(after, c)
	}
	return after
}
