package dispatcher

import (
	"context"
	"errors"
	"slices"
	"time"

	"spendhook/dispatcher/delivery/store"
	"spendhook/events/history"
	"spendhook/internal/pause"
)

const (
	archiveRetry = 5 // a pass that failed is repeated after archiveRetry intervals
	// archiveTogether is how many partitions are read together. At most 8 MiB of their events are in memory.
	archiveTogether = 32
	// archiveBatch is about how many events are written in one transaction.
	archiveBatch = 400
	trimEvery    = time.Hour
)

// runArchive writes the settled events of the partitions that this replica owns to the history. A database that does
// not answer delays nothing else: the events stay in Redis.
func (d *Dispatcher) runArchive(ctx context.Context) {
	if d.opts.Archive == nil {
		return
	}
	for wait := d.opts.ArchiveEvery; pause.For(ctx, wait); {
		wait = d.opts.ArchiveEvery
		if err := d.archive(ctx, d.Queue.Owned()); err != nil && ctx.Err() == nil {
			d.opts.Logger.Error("settled events not written to the history, trying again", "exception.message", err)
			wait *= archiveRetry
		}
	}
}

// archive writes what waits in partitions. After an error it continues with the others, since one shard of Redis may be
// unavailable.
func (d *Dispatcher) archive(ctx context.Context, partitions []int) (failed error) {
	for len(partitions) > 0 && failed == nil && ctx.Err() == nil {
		var more []int
		for group := range slices.Chunk(partitions, archiveTogether) {
			found, err := d.Deliveries.Unarchived(ctx, group)
			failed = errors.Join(failed, err, d.writeHistory(ctx, found))
			for _, u := range found {
				if u.More() {
					more = append(more, u.Partition)
				}
			}
		}
		partitions = more
	}
	return failed
}

// writeHistory writes what was read of some partitions, several of them together. What was written before an error
// is noted.
func (d *Dispatcher) writeHistory(ctx context.Context, found []store.Unarchived) error {
	for len(found) > 0 {
		var settled, erased []history.Archived
		n := 0
		for ; n < len(found) && (n == 0 || len(settled)+len(found[n].Events) <= archiveBatch); n++ {
			settled, erased = append(settled, found[n].Events...), append(erased, found[n].Erased...)
		}
		err := d.opts.Archive.Write(ctx, settled)
		if err == nil {
			err = d.opts.Archive.Erase(ctx, erased) // after Write: an event may be in both
		}
		if err == nil {
			err = d.Deliveries.Archived(ctx, found[:n]...)
		}
		if err != nil {
			return err
		}
		d.metrics.history.Add(float64(len(settled)))
		found = found[n:]
	}
	return nil
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

// trim takes Redis's clock: that of a replica alone must not decide what is removed.
func (d *Dispatcher) trim(ctx context.Context) error {
	now, err := d.opts.Client.Time(ctx).Result()
	if err != nil {
		return err
	}
	_, err = d.opts.Archive.Trim(ctx, now.Add(-d.opts.ArchiveRetention))
	return err
}
