// Package contacts tells people of a subscriber's trouble, by mail or in a chat: a day before the subscriber is disabled,
// when it is, and when it works again. Once a minute the owner of a partition compares what is true with what each contact
// was told, and sends the difference: so a contact hears of the last state only, a message that fails is sent later, and a
// crash repeats at most one message. A contact gets nothing but one request to confirm until it has confirmed, and nothing
// once it has unsubscribed.
package contacts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"spendhook/audit"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/webhook"
	"spendhook/internal/clock"
	"spendhook/internal/partition"
	"spendhook/internal/pause"
	"spendhook/internal/ratelimit"
	"spendhook/internal/seal"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/health"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/registry"
)

const (
	interval = time.Minute
	// atOnce is how many companies' contacts are told at a time. turn bounds the time of one. A message that fails waits for
	// firstWait, then twice as long, up to maxWait, until it was tried maxTries times.
	atOnce    = 8
	turn      = 30 * time.Second
	timeout   = 10 * time.Second // of a message; of a mail, to connect, and then to send it
	firstWait = time.Minute
	maxWait   = time.Hour
	maxTries  = 24     // within a day
	maxWaits  = 10_000 // waits that are remembered
)

// The states of a contact.
const (
	stateUnconfirmed  = "unconfirmed"
	stateConfirmed    = "confirmed"
	stateUnsubscribed = "unsubscribed"
)

// Fields of layout.ContactsKey: what is known of an address, followed by its digest.
const (
	asked        = "a:"
	confirmed    = "c:"
	unsubscribed = "u:"
)

// Options are what a Notifier needs. All but Mailer, Audit, Logger, Registerer and Now are required; States needs the
// Client alone.
type Options struct {
	Client   redis.UniversalClient
	Keyring  *seal.Keyring // of the links
	Registry *registry.Registry
	Health   *health.Store
	Limiter  *ratelimit.Limiter
	Mailer   *Mailer                                               // nil: no mail is sent
	Send     func(context.Context, webhook.Request) attempt.Result // webhook.Sender.Send
	// Owned lists the partitions of this replica, which alone tells the contacts of their companies. It and Audit may be
	// called concurrently.
	Owned      func() []int
	FailsFor   func(retries time.Duration) time.Duration // delivery.Policy.FailsFor
	PublicURL  string                                    // of this service
	Hourly     int                                       // the most messages of a company in an hour, except requests to confirm
	Confirms   int                                       // the most requests to confirm of a company in an hour
	Audit      func(audit.Entry)
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time
}

// Notifier tells contacts. Run may be called once; the other methods are safe for concurrent use.
type Notifier struct {
	opts     Options
	messages *prometheus.CounterVec
	waits    *lru.Cache[string, wait] // of messages that were not sent
	mailDown atomic.Bool              // in this round: the SMTP server could not be reached
}

// wait is how long a message waits after it failed.
type wait struct {
	until time.Time
	next  time.Duration
	tries int
}

// New returns a Notifier that sends nothing yet.
func New(o Options) *Notifier {
	o.PublicURL, o.Now = strings.TrimRight(o.PublicURL, "/"), clock.Or(o.Now)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Audit == nil {
		o.Audit = func(audit.Entry) {}
	}
	waits, _ := lru.New[string, wait](maxWaits) // fails only for a size < 1
	return &Notifier{opts: o, messages: newMessages(o.Registerer), waits: waits}
}

// Run tells the contacts once a minute until ctx ends.
func (n *Notifier) Run(ctx context.Context) {
	for ok := true; ok; ok = pause.For(ctx, interval) {
		n.round(ctx)
	}
}

// told is what the contacts of a subscriber were told: digest of the address to news.mark.
type told map[string]string

// round tells the contacts of all companies of this replica's partitions.
func (n *Notifier) round(ctx context.Context) {
	n.mailDown.Store(false)
	byCompany, err := n.index(ctx)
	if err != nil && ctx.Err() == nil {
		n.opts.Logger.Warn("the contacts of subscribers were not read", "exception.message", err)
	}
	var companies errgroup.Group
	companies.SetLimit(atOnce)
	for company, of := range byCompany {
		companies.Go(func() error {
			limited, cancel := context.WithTimeout(ctx, turn)
			defer cancel()
			if err := n.tellCompany(limited, company, of); err != nil && limited.Err() == nil {
				n.opts.Logger.Warn("the contacts of a company were not told", "company_uuid", company, "exception.message", err)
			}
			return nil
		})
	}
	_ = companies.Wait() // there are no errors
}

// index reads which subscribers of this replica's partitions have contacts, and what these were told.
func (n *Notifier) index(ctx context.Context) (map[uuid.UUID]map[uuid.UUID]told, error) {
	owned := n.opts.Owned()
	replies := make([]*redis.MapStringStringCmd, len(owned))
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := n.opts.Client.Pipelined(limited, func(pipe redis.Pipeliner) error {
		for i, p := range owned {
			replies[i] = pipe.HGetAll(limited, layout.ToldKey(p))
		}
		return nil
	})
	all := map[uuid.UUID]map[uuid.UUID]told{} // of a shard that failed: nothing
	for _, reply := range replies {
		for member, text := range reply.Val() {
			before, after, _ := strings.Cut(member, "/")
			company, companyErr := uuid.Parse(before)
			subscriber, subscriberErr := uuid.Parse(after)
			if companyErr != nil || subscriberErr != nil {
				continue
			}
			if all[company] == nil {
				all[company] = map[uuid.UUID]told{}
			}
			of := told{}
			_ = json.Unmarshal([]byte(text), &of) // it is empty, or damaged: then the state is told again
			all[company][subscriber] = of
		}
	}
	return all, err
}

// tellCompany tells the contacts of a company what they do not know yet.
func (n *Notifier) tellCompany(ctx context.Context, company uuid.UUID, index map[uuid.UUID]told) error {
	// The marks are read before the subscribers, so that a mark without a contact had none then.
	marks, err := n.opts.Client.HGetAll(ctx, layout.ContactsKey(company)).Result()
	if err != nil {
		return err
	}
	all, err := n.opts.Registry.Current(ctx, company)
	if err != nil {
		return err
	}
	healths, err := n.opts.Health.Of(ctx, company, slices.Collect(maps.Keys(index))...)
	if err != nil {
		return err
	}
	known := map[string]bool{} // the digests of all contacts
	gone := maps.Clone(index)
	for _, sub := range all {
		delete(gone, sub.UUID)
		for _, c := range sub.Contacts {
			known[digest(c)] = true
		}
		if of, listed := index[sub.UUID]; listed && sub.Locked == nil {
			if err := n.tellSubscriber(ctx, sub, healths[sub.UUID], of, marks); err != nil {
				return err
			}
		}
	}
	if slices.ContainsFunc(all, func(s *subscribers.Subscriber) bool { return s.Locked != nil }) {
		marks = nil // its contacts cannot be read, and are not known
	}
	return n.tidy(ctx, company, gone, marks, known)
}

// tidy removes what is kept of subscribers that were deleted, and of contacts that no subscriber has any more; but an
// address that has unsubscribed stays so.
func (n *Notifier) tidy(ctx context.Context, company uuid.UUID, gone map[uuid.UUID]told, marks map[string]string, known map[string]bool) error {
	var stale, members []string
	for field := range marks {
		if !known[field[min(len(field), len(asked)):]] && !strings.HasPrefix(field, unsubscribed) {
			stale = append(stale, field)
		}
	}
	for id := range gone {
		members = append(members, company.String()+"/"+id.String())
	}
	if len(stale)+len(members) == 0 {
		return nil
	}
	_, err := n.opts.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		if len(stale) > 0 {
			pipe.HDel(ctx, layout.ContactsKey(company), stale...)
		}
		if len(members) > 0 {
			pipe.HDel(ctx, layout.ToldKey(partition.Of(company)), members...)
		}
		return nil
	})
	return err
}

// tellSubscriber tells the contacts of a subscriber. It adds to of and to marks.
func (n *Notifier) tellSubscriber(ctx context.Context, sub *subscribers.Subscriber, h health.Health, of told, marks map[string]string) error {
	for _, c := range sub.Contacts {
		id := digest(c)
		place := member(sub) + "/" + id
		switch stateOf(marks, id) {
		case stateUnconfirmed:
			key := sub.CompanyUUID.String() + "/" + id
			if marks[asked+id] != "" || !n.send(ctx, sub.CompanyUUID, c, key, n.request(sub.CompanyUUID, c)) {
				continue
			}
			marks[asked+id] = strconv.FormatInt(n.opts.Now().UnixMilli(), 10)
			if err := n.note(ctx, key, func(ctx context.Context, pipe redis.Pipeliner) {
				pipe.HSet(ctx, layout.ContactsKey(sub.CompanyUUID), asked+id, marks[asked+id])
				// If the company was erased meanwhile, the next round finds it here, and removes both.
				pipe.HSetNX(ctx, layout.ToldKey(partition.Of(sub.CompanyUUID)), member(sub), "")
			}); err != nil {
				return err
			}
		case stateConfirmed:
			what := n.newsOf(sub, h, of[id])
			if what.kind == "" || !n.send(ctx, sub.CompanyUUID, c, place, n.report(sub, c, what)) {
				continue
			}
			of[id] = what.mark
			if err := n.keep(ctx, place, sub, of); err != nil {
				return err
			}
		}
	}
	return nil
}

// keep stores what the contacts of a subscriber were told, without those that it has no longer.
func (n *Notifier) keep(ctx context.Context, key string, sub *subscribers.Subscriber, of told) error {
	maps.DeleteFunc(of, func(id, mark string) bool {
		return mark == "" || !slices.ContainsFunc(sub.Contacts, func(c callback.Contact) bool { return digest(c) == id })
	})
	text, err := json.Marshal(of, json.Deterministic(true))
	if err != nil {
		return err
	}
	return n.note(ctx, key, func(ctx context.Context, pipe redis.Pipeliner) {
		pipe.HSet(ctx, layout.ToldKey(partition.Of(sub.CompanyUUID)), member(sub), string(text))
	})
}

// member names a subscriber in layout.ToldKey.
func member(sub *subscribers.Subscriber) string {
	return sub.CompanyUUID.String() + "/" + sub.UUID.String()
}

// note writes that the message with a key was sent, also while this service stops.
func (n *Notifier) note(ctx context.Context, key string, write func(context.Context, redis.Pipeliner)) error {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	_, err := n.opts.Client.Pipelined(limited, func(pipe redis.Pipeliner) error {
		write(limited, pipe)
		return nil
	})
	if err == nil {
		n.waits.Remove(key)
	}
	return err
}

// digest names a contact in Redis, within its company.
func digest(c callback.Contact) string {
	sum := sha256.Sum256([]byte(c.Address))
	return hex.EncodeToString(sum[:16])
}

func stateOf(marks map[string]string, digest string) string {
	switch {
	case marks[unsubscribed+digest] != "":
		return stateUnsubscribed
	case marks[confirmed+digest] != "":
		return stateConfirmed
	}
	return stateUnconfirmed
}

// States returns the state of each contact of a company's subscribers: unconfirmed, confirmed or unsubscribed, by its
// address. It reads nothing if there are none.
func (n *Notifier) States(ctx context.Context, company uuid.UUID, all ...callback.Contact) (map[string]string, error) {
	if len(all) == 0 {
		return nil, nil //nolint:nilnil // it has no contacts
	}
	fields := make([]string, 0, 2*len(all))
	for _, c := range all {
		fields = append(fields, confirmed+digest(c), unsubscribed+digest(c))
	}
	values, err := n.opts.Client.HMGet(ctx, layout.ContactsKey(company), fields...).Result()
	if err != nil {
		return nil, fmt.Errorf("read the states of contacts: %w", err)
	}
	marks := map[string]string{}
	for i, value := range values {
		marks[fields[i]], _ = value.(string)
	}
	states := make(map[string]string, len(all))
	for _, c := range all {
		states[c.Address] = stateOf(marks, digest(c))
	}
	return states, nil
}
