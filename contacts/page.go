package contacts

import (
	"context"
	_ "embed"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/audit"
	"spendhook/internal/peer"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/layout"
)

// Route is the path below which the pages of the links are.
const Route = "/contacts/"

// The pages below Route.
const (
	confirmRoute     = "confirm"
	unsubscribeRoute = "unsubscribe"
)

const (
	confirmWithin = 7 * 24 * time.Hour
	// pageTimeout bounds how long a request waits for Redis.
	pageTimeout = time.Second
)

// link returns a link that only this service can make. A link to confirm expires.
func (n *Notifier) link(route string, company uuid.UUID, c callback.Contact) string {
	expires := int64(0)
	if route == confirmRoute {
		expires = n.opts.Now().Add(confirmWithin).Unix()
	}
	text := company.String() + " " + strconv.FormatInt(expires, 10) + " " + c.Address
	sealed, err := n.opts.Keyring.Seal([]byte(text), placeOf(route))
	if err != nil {
		return n.opts.PublicURL // it never fails with a valid key
	}
	return n.opts.PublicURL + Route + route + "?t=" + url.QueryEscape(sealed)
}

func placeOf(route string) string { return "contact/" + route }

var errLink = errors.New("the link is not valid, or has expired")

func (n *Notifier) readLink(route, sealed string) (company uuid.UUID, c callback.Contact, err error) {
	text, err := n.opts.Keyring.Open(sealed, placeOf(route))
	if err != nil {
		return company, c, errLink
	}
	parts := strings.SplitN(string(text), " ", 3)
	if len(parts) != 3 {
		return company, c, errLink
	}
	company, err = uuid.Parse(parts[0])
	expires, numberErr := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || numberErr != nil || expires > 0 && n.opts.Now().Unix() >= expires {
		return company, c, errLink
	}
	return company, callback.Contact{Address: parts[2]}, nil
}

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

type shown struct{ Title, Text, Address, Company, Button string }

// ServeHTTP shows the page of a link, with a button, and does what the link says when the button is pressed: programs that
// check mails open links, too. A mail program may send the POST by itself to unsubscribe (RFC 8058).
func (n *Notifier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route := strings.TrimPrefix(r.URL.Path, Route)
	company, c, err := n.readLink(route, r.URL.Query().Get("t"))
	if err != nil {
		show(w, http.StatusNotFound, shown{Title: "This link does not work", Text: "It is not complete, or it has expired."})
		return
	}
	out := shown{Address: c.Address, Company: company.String()}
	if r.Method != http.MethodPost {
		out.Title, out.Text, out.Button = "Confirm messages", "The service will send a message when a webhook endpoint of the company is about to be disabled, is disabled, and works again.", "Confirm"
		if route == unsubscribeRoute {
			out.Title, out.Text, out.Button = "Unsubscribe", "The service will send no more messages about this company here. This cannot be undone.", "Unsubscribe"
		}
		show(w, http.StatusOK, out)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
	defer cancel()
	state, changed, err := n.follow(ctx, route, company, c)
	switch {
	case err != nil:
		show(w, http.StatusServiceUnavailable, shown{Title: "Not now", Text: "The service cannot do this now. Please try again."})
		return
	case state == stateConfirmed:
		out.Title, out.Text = "Confirmed", "Messages are sent from now on."
	case state == stateUnsubscribed:
		out.Title, out.Text = "Unsubscribed", "No more messages about this company are sent here."
	default:
		out.Title, out.Text = "Nothing to confirm", "The company does not ask for this any more."
	}
	if changed {
		n.opts.Audit(audit.Entry{
			Actor:  audit.Actor{Kind: audit.Contact, Subject: c.Address},
			Action: "contact." + route, Target: audit.Target{Kind: "company", IDs: []string{company.String()}}, CompanyUUID: &company,
			Outcome: audit.Success, RequestID: w.Header().Get("X-Request-Id"), Address: peer.AddressText(r.Context()),
		})
	}
	show(w, http.StatusOK, out)
}

// follow does what a link says, and returns the state of the contact. An address that has unsubscribed stays so, and one that
// is not asked any more is not confirmed.
func (n *Notifier) follow(ctx context.Context, route string, company uuid.UUID, c callback.Contact) (state string, changed bool, err error) {
	key, id := layout.ContactsKey(company), digest(c)
	values, err := n.opts.Client.HMGet(ctx, key, asked+id, confirmed+id, unsubscribed+id).Result()
	if err != nil {
		return "", false, err
	}
	mark, state := unsubscribed, stateUnsubscribed
	switch {
	case values[2] != nil:
		return stateUnsubscribed, false, nil
	case route == unsubscribeRoute:
	case values[1] != nil:
		return stateConfirmed, false, nil
	case values[0] == nil: // or it was asked a moment ago
		all, err := n.opts.Registry.Current(ctx, company)
		if err != nil || !slices.ContainsFunc(all, func(s *subscribers.Subscriber) bool {
			return slices.ContainsFunc(s.Contacts, func(other callback.Contact) bool { return digest(other) == id })
		}) {
			return stateUnconfirmed, false, err
		}
		mark, state = confirmed, stateConfirmed
	default:
		mark, state = confirmed, stateConfirmed
	}
	err = n.opts.Client.HSet(ctx, key, mark+id, strconv.FormatInt(n.opts.Now().UnixMilli(), 10)).Err()
	return state, err == nil, err
}

func show(w http.ResponseWriter, status int, out shown) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = page.Execute(w, out) // the client has disconnected
}
