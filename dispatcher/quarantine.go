package dispatcher

import (
	"context"

	"spendhook/dispatcher/workqueue"
)

// Quarantined lists events and deliveries that could not be read.
// cursor.ErrBad when the cursor is not of this list.
func (d *Dispatcher) Quarantined(ctx context.Context, f workqueue.QuarantineFilter) (workqueue.QuarantinePage, error) {
	return d.queue.Quarantined(ctx, f)
}

// RetryQuarantined has an entry of the quarantine tried again.
// workqueue.ErrNotQuarantined when there is none.
func (d *Dispatcher) RetryQuarantined(ctx context.Context, e workqueue.Quarantined) error {
	return d.queue.RetryQuarantined(ctx, e)
}

// DropQuarantined gives up an entry of the quarantine.
// workqueue.ErrNotQuarantined when there is none.
func (d *Dispatcher) DropQuarantined(ctx context.Context, e workqueue.Quarantined) error {
	return d.deliveries.DropQuarantined(ctx, e)
}
