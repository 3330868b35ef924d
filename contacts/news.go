package contacts

import (
	"strconv"
	"time"

	"spendhook/subscribers"
	"spendhook/subscribers/health"
)

// The kinds of messages, values of the label of spendhook_contact_messages_total.
const (
	kindConfirm   = "confirm"
	kindWarned    = "warned"
	kindDisabled  = "disabled"
	kindRecovered = "recovered"
)

// warning is how long before a subscriber is disabled its contacts are warned, or half of the time that it may fail.
const warning = 24 * time.Hour

// news is what a contact does not know yet.
type news struct {
	kind string // "" if there is none
	mark string // of the contact that was told it; "": it has nothing to hear of
	id   string // the same whenever it is told
	at   time.Time
}

// newsOf compares the state of a subscriber with what a contact was told last. The company itself knows that it disabled a
// subscriber.
func (n *Notifier) newsOf(sub *subscribers.Subscriber, h health.Health, told string) news {
	failing := h.State == health.StateFailing && h.FailingSince != nil
	var next news
	switch {
	case !sub.Enabled && sub.DisabledReason != subscribers.ReasonManual && sub.DisabledAt != nil:
		next = news{kind: kindDisabled, at: *sub.DisabledAt}
		next.mark = next.kind + " " + strconv.FormatInt(sub.DisabledAt.UnixMilli(), 10)
	case !sub.Enabled:
	case failing && h.PausedAt == nil:
		after := n.opts.FailsFor(sub.RetryTime())
		end := h.FailingSince.Add(after)
		if n.opts.Now().Before(end.Add(-min(warning, after/2))) {
			return news{}
		}
		next = news{kind: kindWarned, at: end}
		next.mark = next.kind + " " + strconv.FormatInt(end.UnixMilli(), 10) // it moves with the schedule of retries
	case !failing && told != "" && h.LastSuccessAt != nil: // enabling it removes the last success
		return news{kind: kindRecovered, at: *h.LastSuccessAt, id: told}
	}
	if next.mark == told {
		return news{}
	}
	next.id = next.mark
	return next
}
