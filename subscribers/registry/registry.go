// Package registry keeps copies of companies' subscribers in memory for matching events. A copy
// is used only for the version that it was read with, so it is never stale.
package registry

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/google/uuid"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"spendhook/subscribers"
	"spendhook/subscribers/listing"
)

const defaultBytes = 192 << 20

// Registry keeps copies of the subscribers of the companies used last. It is safe for
// concurrent use.
type Registry struct {
	reader   *listing.Reader
	maxBytes int64

	mu     sync.Mutex // guards this group
	copies *simplelru.LRU[uuid.UUID, *snapshot]
	bytes  int64
	loads  map[uuid.UUID]*load // of the companies that a call is loading
}

// snapshot never changes once it is in the registry.
type snapshot struct {
	version     int64
	subscribers []*subscribers.Subscriber
	bytes       int64
}

// load is one read of a company, whose result several calls may use.
type load struct {
	ended chan struct{} // closed when the other fields are set
	*snapshot
	err error
}

// New returns an empty Registry of the subscribers that reader reads; it does not talk to Redis
// yet. maxBytes bounds the memory of all copies, as sizeOf estimates it; 0 means 192 MiB.
func New(reader *listing.Reader, maxBytes int64) *Registry {
	copies, _ := simplelru.NewLRU[uuid.UUID, *snapshot](math.MaxInt, nil) // fails only for a size < 1
	return &Registry{reader: reader, maxBytes: cmp.Or(maxBytes, defaultBytes), copies: copies, loads: make(map[uuid.UUID]*load)}
}

// CompanyVersion is a company and the version of its subscribers that a claim has read; 0 when
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
	version, err := r.reader.Version(ctx, company)
	if err != nil {
		return nil, err
	}
	return r.subscribers(ctx, company, version)
}

// List lists subscribers as listing.Reader does. For one company it uses the registry's copy, if
// that has the present version.
func (r *Registry) List(ctx context.Context, f listing.Filter) ([]subscribers.Subscriber, int, error) {
	if f.Company == nil {
		return r.reader.List(ctx, f)
	}
	all, err := r.Current(ctx, *f.Company)
	if err != nil {
		return nil, 0, err
	}
	return f.Select(all)
}

// subscribers is SubscribersOf for one company.
func (r *Registry) subscribers(ctx context.Context, company uuid.UUID, version int64) ([]*subscribers.Subscriber, error) {
	wanted := CompanyVersion{company, version}
	if s := r.copyOf(wanted); s != nil {
		return s.subscribers, nil
	}
	loaded := r.SubscribersOf(ctx, wanted)[0]
	return loaded.Subscribers, loaded.Err
}

// SubscribersOf returns for each company, in order, all its subscribers, oldest
// first, also disabled ones, as they were at the version or later. It talks to
// Redis only for companies whose copy has another version, in one round trip to
// each shard; concurrent calls share the load of a company. A company that cannot be read, or not
// before ctx ends, fails alone; a subscriber or certificate that cannot be opened is Unusable, alone
// too. The results are shared: do not change them.
func (r *Registry) SubscribersOf(ctx context.Context, wanted ...CompanyVersion) []Loaded {
	all := make([]Loaded, len(wanted))
	var missing []uuid.UUID
	var at map[uuid.UUID][]int // the indexes of the missing companies in wanted
	for i, w := range wanted {
		if s := r.copyOf(w); s != nil {
			all[i].Subscribers = s.subscribers
		} else if w.Version != 0 {
			if at == nil {
				at = make(map[uuid.UUID][]int)
			}
			if at[w.Company] == nil {
				missing = append(missing, w.Company)
			}
			at[w.Company] = append(at[w.Company], i)
		}
	}
	if missing == nil {
		return all
	}
	own, others := r.share(missing)
	r.reader.Load(ctx, own, func(company uuid.UUID, found []*subscribers.Subscriber, version int64, err error) {
		for _, i := range at[company] {
			all[i] = Loaded{found, err}
		}
		r.loaded(company, &snapshot{version, found, sizeOf(found)}, err) // subscribers and version are from one reply
	})
	for company, l := range others {
		for _, i := range at[company] {
			all[i] = r.wait(ctx, l, wanted[i])
		}
	}
	return all
}

// share says which of the companies the caller has to load, and which loads of other calls have the rest.
func (r *Registry) share(companies []uuid.UUID) (own []uuid.UUID, others map[uuid.UUID]*load) {
	r.mu.Lock()
	defer r.mu.Unlock()
	others = make(map[uuid.UUID]*load)
	for _, company := range companies {
		if l, ok := r.loads[company]; ok {
			others[company] = l
			continue
		}
		r.loads[company] = &load{ended: make(chan struct{})}
		own = append(own, company)
	}
	return own, others
}

// loaded ends the load of a company, and keeps a copy.
func (r *Registry) loaded(company uuid.UUID, s *snapshot, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && s.version != 0 {
		r.keep(company, s)
	}
	l := r.loads[company]
	delete(r.loads, company)
	l.snapshot, l.err = s, err
	close(l.ended)
}

// wait waits for the load of another call. It loads the company itself if that load failed, since its
// context may have ended, or began before the version was written.
func (r *Registry) wait(ctx context.Context, l *load, w CompanyVersion) Loaded {
	select {
	case <-l.ended:
	case <-ctx.Done():
		return Loaded{Err: fmt.Errorf("load subscribers: %w", ctx.Err())}
	}
	if l.err == nil && l.version >= w.Version {
		return Loaded{Subscribers: l.subscribers}
	}
	return r.SubscribersOf(ctx, w)[0]
}

func (r *Registry) copyOf(w CompanyVersion) *snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.copies.Get(w.Company); ok && s.version == w.Version {
		return s
	}
	return nil
}

// keep stores a copy, in place of an older one, and drops the least recently used copies until
// all fit. The caller holds mu.
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
	subscriberBytes  = 440
	eventBytes       = 16
	secretBytes      = 64
	certificateBytes = 4 << 10 // a parsed certificate and its key
	filterBytes      = 64      // a compiled filter, for each of its characters
)

func sizeOf(all []*subscribers.Subscriber) int64 {
	n := copyBytes
	for i, s := range all {
		if i == 0 && s.Certificate != nil { // all have the same
			n += certificateBytes
			if pair := s.Certificate.TLS; pair != nil {
				for _, link := range pair.Certificate {
					n += len(link)
				}
			}
		}
		n += subscriberBytes + len(s.Name) + len(s.CallbackURL) + filterBytes*len(s.Filter)
		for _, e := range s.Events {
			n += eventBytes + len(e)
		}
		for _, k := range s.Secrets {
			n += secretBytes + len(k.Key)
		}
		for _, h := range s.Headers {
			n += secretBytes + len(h.Name) + len(h.Value)
		}
	}
	return int64(n)
}
