package subscribers

import (
	"strconv"

	"spendhook/events/eventtype"
	"spendhook/events/operational"
)

// disabledNotice is the notice of a change that disables a subscriber because of its endpoint;
// "" for other changes, including a disable by the company itself.
func (s *Store) disabledNotice(before, after *Subscriber) (string, error) {
	if s.opts.Operational == nil || !before.Enabled || after.Enabled || after.DisabledReason == ReasonManual {
		return "", nil
	}
	return s.opts.Operational.Encode(operational.Event{
		ID:   "subscriber-disabled-" + after.UUID.String() + "-" + strconv.FormatInt(after.DisabledAt.UnixMilli(), 10),
		Type: eventtype.SubscriberDisabled, Company: after.CompanyUUID, At: *after.DisabledAt,
		Metadata: map[string]any{"subscriberUuid": after.UUID, "reason": after.DisabledReason},
	})
}
