package redelivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/layout"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
)

// Erase starts a job that erases the present data of a company: its subscribers with their
// secrets, its egress certificate, its signing keys, what is known of its contacts, its pending deliveries, and the payloads of its events with the
// receivers' answers. It cancels the company's other jobs. It keeps ids, digests and numbers of events,
// and data that the company adds later. The error may be ErrTooManyJobs.
func (s *Service) Erase(ctx context.Context, company uuid.UUID) (Job, error) {
	until, err := s.present(ctx, company)
	if err != nil {
		return Job{}, err
	}
	return s.startJob(ctx, Job{CompanyUUID: company, Kind: JobErase, Filter: store.Filter{To: &until}})
}

// present is now, or when the company's last event was accepted if that is later by Redis's clock.
func (s *Service) present(ctx context.Context, company uuid.UUID) (time.Time, error) {
	last, err := s.Client.HGet(ctx, layout.StateKey(company), "at").Float64()
	if err != nil && !errors.Is(err, redis.Nil) { // it has no event
		return time.Time{}, fmt.Errorf("read when the last event was accepted: %w", err)
	}
	return time.UnixMilli(max(s.Now().UnixMilli(), int64(last))).UTC(), nil
}

// eraseOld cancels a page of the deliveries that are live although their events are past the retention, and erases the
// events, which eraseEvents would not find. It goes before eraseSubscribers: without subscribers the owner of the
// partition cancels these deliveries, and nothing finds them any more.
func (s *Service) eraseOld(ctx context.Context, j *Job) (string, error) {
	f, oldest := j.page(live, s.Page), s.keptEvents.Oldest()
	f.To, f.Cursor = &oldest, "" // the deliveries of earlier pages have left the list
	page, err := s.kept.List(ctx, f)
	if err != nil {
		return "", err
	}
	refs, writes := make([]events.Ref, len(page.Items)), make([]store.Write, 0, len(page.Items))
	for i := range page.Items {
		d := &page.Items[i]
		refs[i] = d.Ref.Ref
		if d.Status != delivery.StatusDelivering {
			writes = append(writes, writeOf(d.Ref, &d.Record, new(delivery.Cancel(d.Record, delivery.ReasonDropped, s.Now()))))
		}
	}
	if len(refs) == 0 {
		return "", nil
	}
	if _, err := s.write(ctx, writes...); err != nil {
		return "", err
	}
	return "more", s.eraseAll(ctx, j, refs)
}

// cancelOthers cancels the company's other jobs, which could create deliveries.
func (s *Service) cancelOthers(ctx context.Context, j *Job) (string, error) {
	all, err := s.all(ctx, j.CompanyUUID)
	if err != nil {
		return "", err
	}
	for _, o := range all {
		if o.finished() || o.Kind == JobErase || o.CreatedAt.After(j.CreatedAt) {
			continue
		}
		_, err := s.Cancel(ctx, j.CompanyUUID, o.UUID)
		if err != nil && !errors.Is(err, ErrFinished) && !errors.Is(err, delivery.ErrNotFound) {
			return "", err
		}
	}
	return "", nil
}

// eraseSubscribers deletes the company's subscribers, and what belongs to them.
func (s *Service) eraseSubscribers(ctx context.Context, j *Job) (string, error) {
	subs, err := s.Registry.Current(ctx, j.CompanyUUID)
	if err != nil {
		return "", err
	}
	for _, sub := range subs {
		if sub.CreatedAt.After(*j.Filter.To) {
			continue
		}
		j.Examined++
		if err := s.Subscribers.Delete(ctx, j.CompanyUUID, sub.UUID); err != nil && !errors.Is(err, subscribers.ErrNotFound) {
			return "", err
		}
	}
	if err := s.Certificates.Remove(ctx, j.CompanyUUID); err != nil && !errors.Is(err, certificate.ErrNotFound) {
		return "", err
	}
	return "", s.Subscribers.Forget(ctx, j.CompanyUUID)
}

// forceAfter is how long the job waits for unreadable events to be quarantined, so that metrics count
// them. Then it erases them unquarantined.
const forceAfter = time.Minute

// eraseEvents erases a page of events, oldest first. It waits while an event of the page is open. Without
// subscribers, each event settles soon: its deliveries are cancelled in their turn, and matching
// creates none.
func (s *Service) eraseEvents(ctx context.Context, j *Job) (string, error) {
	ids, next, err := s.keptEvents.Walk(ctx, j.CompanyUUID, time.UnixMilli(0), *j.Filter.To, j.Cursor, s.Page)
	if err != nil {
		return "", err
	}
	return next, s.eraseAll(ctx, j, refsOf(j.CompanyUUID, ids))
}

// eraseAll erases events. If some are open, it drops the quarantine again, since they may have been
// quarantined meanwhile, and returns errHeld.
func (s *Service) eraseAll(ctx context.Context, j *Job, refs []events.Ref) error {
	erased, open, err := s.Deliveries.EraseAll(ctx, refs, s.Now().Sub(j.CreatedAt) > forceAfter)
	j.Examined += int64(erased)
	j.Changed += int64(erased)
	if err != nil || open == 0 {
		return err
	}
	for next := ""; ; {
		if next, err = s.dropQuarantined(ctx, j, next); err != nil || next == "" {
			return cmp.Or(err, errHeld)
		}
	}
}

// eraseQuarantine drops a page of the company's entries from the quarantine.
func (s *Service) eraseQuarantine(ctx context.Context, j *Job) (string, error) {
	return s.dropQuarantined(ctx, j, j.Cursor)
}

// dropQuarantined drops one page of quarantine entries, except those of data added after the job.
func (s *Service) dropQuarantined(ctx context.Context, j *Job, at string) (next string, err error) {
	page, err := s.Quarantine.List(ctx, quarantine.Filter{Company: &j.CompanyUUID, Size: 100, Cursor: at})
	for _, e := range page.Items {
		later, err := s.later(ctx, j, e)
		if err != nil {
			return "", err
		}
		if later {
			continue
		}
		if err := s.DropQuarantined(ctx, e); err != nil && !errors.Is(err, quarantine.ErrNotFound) && !errors.Is(err, delivery.ErrInFlight) {
			return "", err
		}
	}
	return page.Next, err
}

// later reports whether the event or subscriber of an entry was added after the job was started. An
// event that cannot be read counts as earlier. The earlier subscribers are deleted already.
func (s *Service) later(ctx context.Context, j *Job, e quarantine.Entry) (bool, error) {
	if e.EventID == "" && e.Subscriber != nil {
		_, err := s.Registry.Find(ctx, j.CompanyUUID, *e.Subscriber)
		if errors.Is(err, subscribers.ErrNotFound) {
			return false, nil
		}
		return err == nil, err
	}
	stored, err := s.keptEvents.Get(ctx, events.Ref{Company: e.Company, ID: e.EventID})
	if errors.Is(err, events.ErrUnavailable) {
		return false, err
	}
	return err == nil && stored.AcceptedAt.After(*j.Filter.To), nil
}

// eraseDead erases the events of dead letters, which are kept longer than the index that eraseEvents
// reads.
func (s *Service) eraseDead(ctx context.Context, j *Job) (string, error) {
	page, err := s.kept.List(ctx, j.page([]delivery.Status{delivery.StatusDead}, s.Page))
	if err != nil {
		return "", err
	}
	refs := make([]events.Ref, len(page.Items))
	for i := range page.Items {
		refs[i] = page.Items[i].Ref.Ref
	}
	return page.Next, s.eraseAll(ctx, j, refs)
}

// eraseName removes the name of the company, at last: it is in another database.
func (s *Service) eraseName(ctx context.Context, j *Job) (string, error) {
	if s.Forget == nil {
		return "", nil
	}
	return "", s.Forget(ctx, j.CompanyUUID)
}

// erasedTogether is how many events of the history are erased together.
const erasedTogether = 100

// eraseHistory erases a page of the company's events in the history, the oldest ones. Of these, some may have been
// restored: they are in no index that eraseEvents reads. Those that settled just now are erased when the owner of the
// partition reads that they were erased in Redis.
func (s *Service) eraseHistory(ctx context.Context, j *Job) (next string, err error) {
	if s.Archive == nil {
		return "", nil
	}
	span := history.Span{Company: j.CompanyUUID, High: j.Filter.To.UnixMilli(), Ascending: true}
	places, err := s.Archive.Index(ctx, span, history.Place{}, erasedTogether)
	if err != nil {
		return "", err
	}
	refs := make([]events.Ref, len(places))
	for i, p := range places {
		refs[i] = events.Ref{Company: j.CompanyUUID, ID: p.ID}
	}
	stored, err := s.keptEvents.GetMany(ctx, refs)
	if err != nil {
		return "", err
	}
	var restored []events.Ref
	for _, e := range stored {
		if e != nil && e.State != events.Compacted && !e.AcceptedAt.After(*j.Filter.To) {
			restored = append(restored, e.Ref())
		}
	}
	if err := s.eraseAll(ctx, j, restored); err != nil {
		return "", err
	}
	more, err := s.Archive.EraseCompany(ctx, j.CompanyUUID, *j.Filter.To, erasedTogether)
	if more {
		next = "more"
	}
	return next, err
}
