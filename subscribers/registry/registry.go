// Package registry reads and lists the subscribers of companies, and keeps copies of them in memory
// for matching events. A copy is used only for the version that it was read with, so it is never
// stale.
package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
	"spendhook/internal/seal"
	"spendhook/subscribers"
	"spendhook/subscribers/layout"
)

const (
	defaultBytes = 192 << 20
	loadTimeout  = 30 * time.Second
)

// Registry keeps copies of the subscribers of the companies used last. It is safe for
// concurrent use.
type Registry struct {
	client   redis.UniversalClient
	keys     *seal.Keyring
	maxBytes int64

	mu     sync.Mutex // guards this group
	copies *simplelru.LRU[uuid.UUID, *snapshot]
	bytes  int64
	loads  map[uuid.UUID]*load // the latest load of each company, while it runs
}

// snapshot never changes once it is in the registry.
type snapshot struct {
	version     int64
	subscribers []*subscribers.Subscriber
	bytes       int64
}

// load reads a company from Redis. Callers that want the version, or an earlier one, share the load:
// it began after the version was written.
type load struct {
	version int64
	done    chan struct{} // closed once result is set
	result  Loaded
}

// wait waits for the result or the end of ctx.
func (l *load) wait(ctx context.Context) Loaded {
	select {
	case <-l.done:
	case <-ctx.Done():
		select {
		case <-l.done: // while the caller waited for another load
		default:
			return Loaded{Err: fmt.Errorf("load subscribers: %w", ctx.Err())}
		}
	}
	return l.result
}

// New returns an empty Registry that decrypts secrets with the keyring. It does not use Redis yet.
// maxBytes bounds the memory of all copies, as sizeOf estimates it; 0 means 192 MiB.
func New(client redis.UniversalClient, keyring *seal.Keyring, maxBytes int64) *Registry {
	copies, _ := simplelru.NewLRU[uuid.UUID, *snapshot](math.MaxInt, nil) // fails only for a size < 1
	return &Registry{client: client, keys: keyring, maxBytes: cmp.Or(maxBytes, defaultBytes), copies: copies, loads: map[uuid.UUID]*load{}}
}

// CompanyVersion is a company and the version of its subscribers that a turn has read; 0 when
// the company has none.
type CompanyVersion struct {
	Company uuid.UUID
	Version int64
}

// Loaded is the answer for one company. Err says why it could not be read; then
// there are no Subscribers.
type Loaded struct {
	Subscribers []*subscribers.Subscriber
	Err         error
}

// Current returns all subscribers of a company as they are now; see SubscribersOf.
func (r *Registry) Current(ctx context.Context, company uuid.UUID) ([]*subscribers.Subscriber, error) {
	version, err := r.client.HGet(ctx, layout.CompanyKey(company), layout.VersionField).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read subscriber version: %w", err)
	}
	loaded := r.SubscribersOf(ctx, CompanyVersion{company, version})[0]
	return loaded.Subscribers, loaded.Err
}

// Find returns a subscriber of a company as it is now, or subscribers.ErrNotFound.
func (r *Registry) Find(ctx context.Context, company, id uuid.UUID) (*subscribers.Subscriber, error) {
	all, err := r.Current(ctx, company)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(all, func(s *subscribers.Subscriber) bool { return s.UUID == id })
	if at < 0 {
		return nil, subscribers.ErrNotFound
	}
	return all[at], nil
}

// SubscribersOf returns for each company, in order, all its subscribers at the
// version or later, oldest first, also disabled ones. It reads only companies whose
// copy has another version, in one round trip to each shard. A company that cannot
// be read before ctx ends has an error, and does not affect the others. A subscriber
// whose secrets or certificate cannot be decrypted is Unusable. The results are
// shared: do not change them.
func (r *Registry) SubscribersOf(ctx context.Context, wanted ...CompanyVersion) []Loaded {
	all := make([]Loaded, len(wanted))
	var waits []*load             // one for each index of wanted, if any company is missing
	var fresh map[uuid.UUID]*load // loads that this call begins
	var companies []uuid.UUID     // their companies, in the order of wanted
	r.mu.Lock()
	for i, w := range wanted {
		if s, ok := r.copies.Get(w.Company); ok && s.version == w.Version {
			all[i].Subscribers = s.subscribers
			continue
		}
		if w.Version == 0 {
			continue
		}
		l := cmp.Or(fresh[w.Company], r.loads[w.Company])
		if l == nil || fresh[w.Company] == nil && l.version < w.Version {
			l = &load{done: make(chan struct{})}
			r.loads[w.Company] = l
			if fresh == nil {
				fresh = map[uuid.UUID]*load{}
			}
			fresh[w.Company] = l
			companies = append(companies, w.Company)
		}
		l.version = max(l.version, w.Version)
		if waits == nil {
			waits = make([]*load, len(wanted))
		}
		waits[i] = l
	}
	r.mu.Unlock()
	if fresh != nil {
		go r.load(context.WithoutCancel(ctx), companies, fresh)
	}
	for i, l := range waits {
		if l != nil {
			all[i] = l.wait(ctx)
		}
	}
	return all
}

// load runs loads of companies. The context of the caller does not end them: other callers share
// them.
func (r *Registry) load(ctx context.Context, companies []uuid.UUID, loads map[uuid.UUID]*load) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	done := func(company uuid.UUID, found []*subscribers.Subscriber, version int64, err error) {
		l := loads[company]
		l.result = Loaded{found, err}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.loads[company] == l {
			delete(r.loads, company)
		}
		if err == nil && version != 0 {
			r.keep(company, &snapshot{version, found, sizeOf(found)})
		}
		close(l.done)
	}
	groups, _ := partition.ByShard(ctx, r.client, companies, layout.CompanyKey)
	var shards sync.WaitGroup
	for _, shard := range groups {
		shards.Go(func() {
			for chunk := range slices.Chunk(shard, loadChunk) {
				r.read(ctx, chunk, r.complete, done)
			}
		})
	}
	shards.Wait()
}

// keep stores a copy in place of an older one, and drops the least recently used copies while the
// copies exceed maxBytes. Call it with mu locked.
func (r *Registry) keep(company uuid.UUID, s *snapshot) {
	if before, ok := r.copies.Peek(company); ok {
		r.bytes -= before.bytes
	}
	r.copies.Add(company, s)
	r.bytes += s.bytes
	for r.bytes > r.maxBytes {
		_, dropped, _ := r.copies.RemoveOldest()
		r.bytes -= dropped.bytes
	}
}

// Memory of a copy besides its texts, in bytes.
const (
	copyBytes        = 280 // the copy of a company itself
	subscriberBytes  = 480
	textBytes        = 16 // an event type or a former URL
	secretBytes      = 64
	oauthBytes       = 2 * secretBytes // besides the secret, four texts and an error
	certificateBytes = 4 << 10         // a parsed certificate and its key
	signingKeysBytes = 1 << 10         // a company's
)

func sizeOf(all []*subscribers.Subscriber) int64 {
	n := copyBytes
	if len(all) > 0 {
		n += signingKeysBytes
	}
	counted := map[any]bool{} // certificates: several subscribers may have the same
	for _, s := range all {
		if s.Certificate != nil && !counted[s.Certificate] {
			counted[s.Certificate] = true
			n += certificateBytes
			if pair := s.Certificate.TLS; pair != nil {
				for _, link := range pair.Certificate {
					n += len(link)
				}
			}
		}
		n += subscriberBytes + len(s.Name) + len(s.CallbackURL)
		n += s.ExpressionBytes()
		for _, text := range slices.Concat(s.Events, s.FormerURLs) {
			n += textBytes + len(text)
		}
		for _, k := range s.Secrets {
			n += secretBytes + len(k.Key)
		}
		for _, h := range s.Headers {
			n += secretBytes + len(h.Name) + len(h.Value)
		}
		if o := s.OAuth; o != nil {
			n += oauthBytes + len(o.TokenURL) + len(o.ClientID) + len(o.ClientSecret) + len(o.Scope) + len(o.Audience)
		}
		for _, c := range s.Contacts {
			n += secretBytes + len(c.Address) + len(c.URL)
		}
	}
	return int64(n)
}
