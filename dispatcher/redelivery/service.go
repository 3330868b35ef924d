// Package redelivery repeats and cancels deliveries: it retries one delivery, replays an event,
// and runs jobs over many deliveries. One kind of job erases the data of a company.
package redelivery

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/publish"
	"spendhook/internal/clock"
	"spendhook/storage/archive"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/expression"
	"spendhook/subscribers/registry"
)

// Options configures a Service; all but Archive, Forget, Free and Now are required.
type Options struct {
	Client       redis.UniversalClient
	Deliveries   *store.Store
	Events       *history.Reader
	Registry     *registry.Registry
	Subscribers  *subscribers.Store
	Certificates *certificate.Store
	Archive      *archive.Store                              // the history; nil: there is none
	Wake         func(ctx context.Context, partitions []int) // wakes partitions that have work
	Quarantine   *quarantine.Store
	Forget       func(ctx context.Context, company uuid.UUID) error // removes the name of an erased company; nil: nothing
	Free         func(company uuid.UUID) int64                      // bytes of Redis below its high-water mark; nil: no limit
	Spill        func(company uuid.UUID)                            // endpoint.Admission.Spill of the replica that runs the company's jobs
	Now          func() time.Time                                   // nil: the real clock, and Redis's for how long jobs are kept
	NewID        func() uuid.UUID
	Attempt      time.Duration // the longest that an attempt takes until it is recorded, nearly always
	Unfinished   int           // jobs of a company at most; further ones are refused, except of the kind ERASE; default 100
	Page         int           // how many deliveries or events one step of a job examines; default 500
	Logger       *slog.Logger
}

// Service is safe for concurrent use.
type Service struct {
	Options

	// What Redis has, without the history: a change is made of a record in Redis.
	keptEvents *history.Reader
	kept       *store.Store

	clock func() time.Time // of how long jobs are kept; nil: Redis's
}

// New returns a Service.
func New(o Options) *Service {
	given := o.Now
	o.Now = clock.Or(given)
	if o.Free == nil {
		o.Free = func(uuid.UUID) int64 { return math.MaxInt64 }
	}
	o.Unfinished, o.Page = cmp.Or(o.Unfinished, 100), cmp.Or(o.Page, 500)
	return &Service{Options: o, keptEvents: o.Events.InRedis(), kept: o.Deliveries.InRedis(), clock: given}
}

// reachable returns subscribers.ErrNotFound or delivery.ErrSubscriberDisabled when no
// deliveries can be made to a subscriber.
func (s *Service) reachable(ctx context.Context, company, id uuid.UUID) error {
	sub, err := s.Registry.Find(ctx, company, id)
	if err == nil && !sub.Enabled {
		err = delivery.ErrSubscriberDisabled
	}
	return err
}

// checkMemory returns publish.ErrStorageFull while Redis is above its high-water mark: its memory is left to
// the deliveries of accepted events.
func (s *Service) checkMemory(company uuid.UUID) error {
	if s.Free(company) <= 0 {
		return publish.ErrStorageFull
	}
	return nil
}

// writeOf returns the write that replaces base by next, unless an attempt is under way.
func writeOf(r delivery.Ref, base, next *delivery.Record) store.Write {
	return store.Write{Event: r.Ref, Changes: []store.Change{{Ref: r, Base: base, Next: next, Guarded: true}}}
}

// write sends writes to Redis. For each change, in order, it returns why the change was not written; nil
// when it was.
func (s *Service) write(ctx context.Context, writes ...store.Write) (out []*store.Found, err error) {
	recorded, wakes, err := s.Deliveries.Record(ctx, s.Now(), writes)
	if err != nil {
		return nil, err
	}
	s.Wake(ctx, wakes)
	for _, r := range recorded {
		if r.Err != nil {
			return nil, r.Err
		}
		out = append(out, r.Found...)
	}
	return out, nil
}

// changeTries bounds the tries of change on a delivery that changes between read and write.
const changeTries = 5

// change writes the record that next returns for the stored one, rec at first; nil changes nothing. The
// error may be delivery.ErrInFlight, delivery.ErrNotFound or events.ErrCompacted.
func (s *Service) change(ctx context.Context, r delivery.Ref, rec *delivery.Record, next func(delivery.Record) *delivery.Record) (delivery.Delivery, error) {
	for range changeTries {
		to := next(*rec)
		if to == nil {
			return delivery.Delivery{Ref: r, Record: *rec}, nil
		}
		all, err := s.write(ctx, writeOf(r, rec, to))
		if err != nil {
			return delivery.Delivery{}, err
		}
		found := all[0]
		switch {
		case found == nil:
			return delivery.Delivery{Ref: r, Record: *to}, nil
		case found.Compacted:
			return delivery.Delivery{}, events.ErrCompacted
		case found.InFlight:
			return delivery.Delivery{}, delivery.ErrInFlight
		case found.Damaged, found.Record.Version == 0:
			return delivery.Delivery{}, delivery.ErrNotFound
		}
		rec = found.Record
	}
	return delivery.Delivery{}, errChanging
}

// restartAll makes deliveries of an event due at once with fresh schedules, all in one call, and updates
// their records. It does not change deliveries with an attempt under way.
func (s *Service) restartAll(ctx context.Context, event events.Ref, all []delivery.Delivery) error {
	todo := make([]*delivery.Delivery, len(all))
	for i := range all {
		todo[i] = &all[i]
	}
	for range changeTries {
		w := store.Write{Event: event, Changes: make([]store.Change, len(todo))}
		for i, d := range todo {
			next := delivery.Restart(d.Record, delivery.ReasonReplay, s.Now())
			w.Changes[i] = store.Change{Ref: d.Ref, Base: &d.Record, Next: &next, Guarded: true}
		}
		found, err := s.write(ctx, w)
		if err != nil {
			return err
		}
		var again []*delivery.Delivery
		for i, d := range todo {
			switch f := found[i]; {
			case f == nil:
				d.Record = *w.Changes[i].Next
			case f.Compacted:
				return events.ErrCompacted
			case f.InFlight:
			case f.Damaged, f.Record.Version == 0:
				return delivery.ErrNotFound
			default: // changed meanwhile
				d.Record = *f.Record
				again = append(again, d)
			}
		}
		if todo = again; len(todo) == 0 {
			return nil
		}
	}
	return errChanging
}

var errChanging = errors.New("the delivery keeps changing")

// Retry makes a delivery in any status due at once, with a fresh schedule. The error may
// be delivery.ErrNotFound, ErrInFlight, ErrSubscriberGone or ErrSubscriberDisabled, or publish.ErrStorageFull.
func (s *Service) Retry(ctx context.Context, company uuid.UUID, id string) (delivery.Delivery, error) {
	if err := s.checkMemory(company); err != nil {
		return delivery.Delivery{}, err
	}
	d, err := s.Deliveries.Delivery(ctx, company, id)
	if err == nil {
		err = s.reachable(ctx, company, d.Subscriber)
	}
	if errors.Is(err, subscribers.ErrNotFound) {
		err = delivery.ErrSubscriberGone
	}
	if err == nil {
		err = s.Deliveries.Restore(ctx, []events.Ref{d.Ref.Ref}, s.Free(company))
	}
	if err == nil {
		d, err = s.kept.Delivery(ctx, company, id)
	}
	if err != nil {
		return delivery.Delivery{}, err
	}
	return s.change(ctx, d.Ref, &d.Record, func(rec delivery.Record) *delivery.Record {
		return new(delivery.Restart(rec, delivery.ReasonReplay, s.Now()))
	})
}

// Replay sends an event again to every enabled subscriber that matches it now, or to those
// of them that only names, each with a fresh schedule and the same webhook-id. It does not
// change deliveries with an attempt under way. The error may be an UnknownSubscribersError,
// events.ErrNotFound, events.ErrCompacted or publish.ErrStorageFull.
func (s *Service) Replay(ctx context.Context, r events.Ref, only []uuid.UUID) (out []delivery.Delivery, err error) {
	if err := s.checkMemory(r.Company); err != nil {
		return nil, err
	}
	if _, err := s.Events.Get(ctx, r); err != nil {
		return nil, err
	}
	subs, err := s.Registry.Current(ctx, r.Company)
	if err != nil {
		return nil, err
	}
	unknown := slices.DeleteFunc(slices.Clone(only), func(id uuid.UUID) bool {
		return slices.ContainsFunc(subs, func(sub *subscribers.Subscriber) bool { return sub.UUID == id })
	})
	if len(unknown) > 0 {
		return nil, UnknownSubscribersError(unknown)
	}
	if err := s.Deliveries.Restore(ctx, []events.Ref{r}, s.Free(r.Company)); err != nil {
		return nil, err
	}
	stored, err := s.keptEvents.Get(ctx, r)
	if err != nil {
		return nil, err
	}
	if stored.State == events.Compacted {
		return nil, events.ErrCompacted
	}
	var refs []delivery.Ref
	var keys []string
	candidate := expression.NewEvent(stored.Event)
	for _, sub := range subs {
		matches, _ := sub.Matches(ctx, candidate) // a filter that fails does not match
		if sub.Enabled && matches && (len(only) == 0 || slices.Contains(only, sub.UUID)) {
			key, _ := sub.OrderKey(ctx, candidate) // one that fails has none
			refs, keys = append(refs, delivery.Ref{Ref: r, Subscriber: sub.UUID}), append(keys, key)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	records, err := s.kept.Get(ctx, refs)
	if err != nil || len(refs) == 0 {
		return nil, err
	}
	for i, ref := range refs {
		out = append(out, delivery.Delivery{Ref: ref, Record: *cmp.Or(records[i], delivery.NewRecord(stored, keys[i]))})
	}
	return out, s.restartAll(ctx, r, out)
}

// UnknownSubscribersError names subscribers that the company does not have.
type UnknownSubscribersError []uuid.UUID

// Error lists at most ten of them.
func (e UnknownSubscribersError) Error() string {
	return strings.Join(uuid.UUIDs(e[:min(len(e), 10)]).Strings(), ", ")
}

// DropQuarantined drops an entry of the quarantine. A subscriber is deleted. A delivery is cancelled.
// An event is no longer pending, and its payload is removed, if it is not matched, or if it cannot be
// read and has no open delivery. quarantine.ErrNotFound when there is no such entry;
// delivery.ErrInFlight while an attempt is under way. Calling it again is safe.
func (s *Service) DropQuarantined(ctx context.Context, e quarantine.Entry) error {
	listed, err := s.Quarantine.Has(ctx, e)
	switch {
	case err != nil:
		return err
	case !listed:
		return quarantine.ErrNotFound
	case e.EventID == "":
		err = s.Subscribers.Delete(ctx, e.Company, *e.Subscriber)
		if err != nil && !errors.Is(err, subscribers.ErrNotFound) {
			return err
		}
		return s.Quarantine.Forget(ctx, e)
	}
	event := events.Ref{Company: e.Company, ID: e.EventID}
	stored, unreadable := s.keptEvents.Get(ctx, event) // the error may also be of Redis, or ErrNotFound
	if errors.Is(unreadable, events.ErrUnavailable) {
		return unreadable
	}
	if e.Subscriber != nil {
		if unreadable != nil {
			stored.AcceptedAt = s.Now()
		}
		err = s.drop(ctx, delivery.Ref{Ref: event, Subscriber: *e.Subscriber}, delivery.NewRecord(stored, ""))
	}
	if err == nil && (unreadable != nil || e.Subscriber == nil && stored.State == events.Ready) {
		err = s.Deliveries.DropQuarantined(ctx, event)
	}
	if err != nil {
		return err
	}
	return s.Quarantine.Forget(ctx, e)
}

// drop cancels a live delivery. fresh replaces a record that cannot be read.
func (s *Service) drop(ctx context.Context, r delivery.Ref, fresh *delivery.Record) error {
	records, err := s.kept.Stored(ctx, []delivery.Ref{r})
	if err != nil {
		return err
	}
	if records[0] == nil {
		w := writeOf(r, fresh, new(delivery.Cancel(*fresh, delivery.ReasonDropped, s.Now())))
		w.Changes[0].Damaged = true
		found, err := s.write(ctx, w)
		if err == nil && found[0] != nil && found[0].InFlight {
			err = delivery.ErrInFlight
		}
		return err
	}
	_, err = s.change(ctx, r, records[0], func(rec delivery.Record) *delivery.Record {
		if !rec.Status.Live() {
			return nil
		}
		return new(delivery.Cancel(rec, delivery.ReasonDropped, s.Now()))
	})
	return err
}
