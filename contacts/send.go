package contacts

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/dispatcher/webhook"
	"spendhook/internal/partition"
	"spendhook/internal/ratelimit"
	"spendhook/subscribers/callback"
)

// The results of messages, values of the label of spendhook_contact_messages_total.
const (
	resultSent    = "sent"    // the SMTP server or the chat took it
	resultRefused = "refused" // it refused it for good, or failed too often: it is not repeated
	resultFailed  = "failed"  // it is sent again
	resultLimited = "limited" // a limit is reached: it is sent later
)

func newMessages(reg prometheus.Registerer) *prometheus.CounterVec {
	c := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "spendhook_contact_messages_total",
		Help: "Messages to contacts of subscribers by channel (mail or chat), kind (confirm, warned, disabled, recovered) and result: sent, refused for good, failed or limited, which are tried again.",
	}, []string{"channel", "kind", "result"})
	for _, channel := range []string{channelMail, channelChat} {
		for _, kind := range []string{kindConfirm, kindWarned, kindDisabled, kindRecovered} {
			for _, result := range []string{resultSent, resultRefused, resultFailed, resultLimited} {
				c.WithLabelValues(channel, kind, result)
			}
		}
	}
	return c
}

const (
	channelMail = "mail"
	channelChat = "chat"
)

// Limits of requests to confirm, or else anybody could flood an address: in a day at most 6 to an address, of all companies
// together, and at most 3 of one, which leaves some to the others.
var (
	confirmsToAddress          = ratelimit.Limit{Name: "contact-address", PerSecond: 3.0 / 86400, Burst: 3}
	confirmsOfCompanyToAddress = ratelimit.Limit{Name: "contact-company-address", PerSecond: 1.0 / 86400, Burst: 2}
)

// bucket names an address in these limits: all spellings of a mailbox have one, and all queries of a chat.
func bucket(c callback.Contact) string {
	if !c.IsMail() {
		chat, _, _ := strings.Cut(c.URL.Reveal(), "?")
		return chat
	}
	local, domain, _ := strings.Cut(c.Address, "@")
	local, _, _ = strings.Cut(local, "+")
	return strings.ToLower(strings.ReplaceAll(local, ".", "") + "@" + strings.Replace(domain, "googlemail.com", "gmail.com", 1))
}

// send sends a message, and reports whether it is settled: it was sent, or refused for good. key tells messages apart that
// wait after a failure.
func (n *Notifier) send(ctx context.Context, company uuid.UUID, c callback.Contact, key string, m message) bool {
	now := n.opts.Now()
	before, _ := n.waits.Peek(key)
	if now.Before(before.until) || ctx.Err() != nil || !slices.Contains(n.opts.Owned(), partition.Of(company)) {
		return false
	}
	channel := channelChat
	if c.IsMail() {
		channel = channelMail
		if n.opts.Mailer == nil || n.mailDown.Load() {
			return false
		}
	}
	limits := n.limits(company, c, m.kind)
	if after, ok := n.take(ctx, limits); !ok {
		n.messages.WithLabelValues(channel, m.kind, resultLimited).Inc()
		n.waits.Add(key, wait{until: now.Add(max(after, interval)), next: before.next, tries: before.tries})
		return false
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var err error
	if c.IsMail() {
		err = n.opts.Mailer.send(limited, c.Address, m)
	} else {
		err = n.post(limited, company, c, m)
	}
	if ctx.Err() != nil && err != nil { // it is unknown
		return false
	}
	if err == nil {
		n.messages.WithLabelValues(channel, m.kind, resultSent).Inc()
		n.waits.Add(key, wait{until: now.Add(maxWait), next: maxWait}) // until it is noted: Redis may refuse that
		return true
	}
	if errors.Is(err, errUnreachable) || errors.Is(err, errDeferred) { // no attempt that the contact could have seen
		n.give(ctx, limits)
		n.mailDown.CompareAndSwap(false, errors.Is(err, errUnreachable))
	} else {
		before.tries++
	}
	result, next := resultFailed, max(firstWait, before.next)
	refused := errors.Is(err, errRefused) || before.tries >= maxTries
	if refused {
		result = resultRefused
	}
	n.messages.WithLabelValues(channel, m.kind, result).Inc()
	n.waits.Add(key, wait{until: now.Add(next), next: min(2*next, maxWait), tries: before.tries})
	n.opts.Logger.Warn("a contact of a subscriber was not told", "company_uuid", company, "channel", channel, "kind", m.kind, "again", !refused, "exception.message", err)
	return refused
}

// bounded is a limit of the messages with a key.
type bounded struct {
	ratelimit.Limit
	key string
}

// limits are those of a message. Requests to confirm have their own, so that many of them delay no news.
func (n *Notifier) limits(company uuid.UUID, c callback.Contact, kind string) []bounded {
	if kind == kindConfirm {
		to := bucket(c)
		return []bounded{{ratelimit.Hourly("contact-confirm", n.opts.Confirms, n.opts.Confirms/2), company.String()}, {confirmsOfCompanyToAddress, company.String() + "/" + to}, {confirmsToAddress, to}}
	}
	return []bounded{{ratelimit.Hourly("contact-messages", n.opts.Hourly, n.opts.Hourly/2), company.String()}}
}

// take counts a message, or says how long to wait.
func (n *Notifier) take(ctx context.Context, limits []bounded) (after time.Duration, ok bool) {
	for i, of := range limits {
		if may := n.opts.Limiter.Take(ctx, of.Limit, of.key, 1); !may.OK {
			n.give(ctx, limits[:i])
			return may.RetryAfter, false
		}
	}
	return 0, true
}

// give takes back what take counted.
func (n *Notifier) give(ctx context.Context, limits []bounded) {
	for _, of := range limits {
		n.opts.Limiter.Give(ctx, of.Limit, of.key, 1)
	}
}

var (
	errRefused     = errors.New("refused for good")
	errDeferred    = errors.New("not now")
	errUnreachable = errors.New("the SMTP server cannot be used")
)

// inChat escapes what Slack reads as a link, a mention or a format.
var inChat = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// post sends a message to a chat, as deliveries are sent: guarded, without redirects. Errors have nothing of the URL.
func (n *Notifier) post(ctx context.Context, company uuid.UUID, c callback.Contact, m message) error {
	if c.Locked != nil {
		return errors.New("its URL cannot be decrypted")
	}
	to, err := url.Parse(c.URL.Reveal())
	if err != nil {
		return errRefused
	}
	body, err := json.Marshal(map[string]string{"text": inChat.Replace(m.subject + "\n\n" + m.text)})
	if err != nil {
		return err
	}
	res := n.opts.Send(ctx, webhook.Request{URL: to, EventID: m.id, Body: body, ContentType: "application/json", Company: company})
	switch status := res.StatusCode; {
	case res.Success():
		return nil
	case status >= 300 && status < 500 && status != http.StatusRequestTimeout && status != http.StatusTooManyRequests:
		return errRefused
	}
	return errors.New(string(res.Class))
}
