package dispatcher

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery/store"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/internal/pause"
)

const (
	archiveRetry = 5 // a pass that failed is repeated after archiveRetry intervals
	// archiveTogether is how many partitions are read together. At most 8 MiB of their events are in memory.
	archiveTogether = 32
	// archiveBatch is about how many events and deliveries are written in one transaction.
	archiveBatch = 1000
	trimEvery    = time.Hour
)

// runArchive writes the settled events of the partitions that this replica owns to the history. A database that does
// not answer delays nothing else: the events stay in Redis.
func (d *Dispatcher) runArchive(ctx context.Context) {
	if d.opts.Archive == nil {
		return
	}
	for wait := d.opts.ArchiveEvery; pause.For(ctx, wait); {
		more, err := d.archive(ctx, d.Queue.Owned())
		switch wait = d.opts.ArchiveEvery; {
		case err != nil && ctx.Err() == nil:
			d.opts.Logger.Error("settled events not written to the history, trying again", "exception.message", err)
			wait *= archiveRetry
		case more:
			wait = 0
		}
	}
}

// archive writes a bounded number of events of each partition, so that none waits for the backlog of another, and reports
// whether there are more. After an error it continues, since one shard of Redis may be unavailable; but not without the
// database.
func (d *Dispatcher) archive(ctx context.Context, partitions []int) (more bool, failed error) {
	for group := range slices.Chunk(partitions, archiveTogether) {
		found, err := d.Deliveries.Unarchived(ctx, group)
		failed = errors.Join(failed, err, d.writeHistory(ctx, found))
		if errors.Is(failed, events.ErrUnavailable) || ctx.Err() != nil {
			return false, failed
		}
		more = more || slices.ContainsFunc(found, func(u store.Unarchived) bool { return u.More() })
	}
	return more, failed
}

// writeHistory writes what was read of some partitions, several of them together. After an error it continues with
// the next ones, unless the database does not answer.
func (d *Dispatcher) writeHistory(ctx context.Context, found []store.Unarchived) (failed error) {
	for len(found) > 0 && !errors.Is(failed, events.ErrUnavailable) {
		n, size := 0, 0
		var settled, erased []history.Archived
		for ; n < len(found) && (n == 0 || size+found[n].Size() <= archiveBatch); n++ {
			settled, erased = append(settled, found[n].Events...), append(erased, found[n].Erased...)
			size += found[n].Size()
		}
		err := d.opts.Archive.Write(ctx, settled)
		if err == nil {
			err = d.opts.Archive.Erase(ctx, erased) // after Write: an event may be in both
		}
		if err == nil {
			err = d.Deliveries.Archived(ctx, found[:n]...)
		}
		if err == nil {
			d.metrics.history.Add(float64(len(settled)))
		}
		failed, found = errors.Join(failed, err), found[n:]
	}
	return failed
}

// runTrim removes from the history what is past its retention. One replica does it: the owner of partition 0.
func (d *Dispatcher) runTrim(ctx context.Context) {
	if d.opts.Archive == nil {
		return
	}
	for {
		if slices.Contains(d.Queue.Owned(), 0) {
			if err := d.trim(ctx); err != nil && ctx.Err() == nil {
				d.opts.Logger.Error("the history is not trimmed", "exception.message", err)
			}
		}
		if !pause.For(ctx, trimEvery) {
			return
		}
	}
}

// trim takes the earlier one of two clocks, Redis's and its own: a wrong clock must not decide what is removed.
func (d *Dispatcher) trim(ctx context.Context) error {
	now, err := d.opts.Client.Time(ctx).Result()
	if err != nil {
		return err
	}
	if own := d.opts.Now(); own.Before(now) {
		now = own
	}
	_, err = d.opts.Archive.Trim(ctx, now.Add(-d.opts.ArchiveRetention))
	for company, kept := range d.opts.CompanyRetention {
		if errors.Is(err, events.ErrUnavailable) {
			return err
		}
		err = errors.Join(err, d.trimCompany(ctx, company, now.Add(-kept)))
	}
	return err
}

// trimTogether is how many events of a company a transaction removes.
const trimTogether = 200

func (d *Dispatcher) trimCompany(ctx context.Context, company uuid.UUID, until time.Time) error {
	for {
		more, err := d.opts.Archive.EraseCompany(ctx, company, until, trimTogether)
		if err != nil || !more {
			return err
		}
	}
}
