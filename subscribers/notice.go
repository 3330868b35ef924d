package subscribers

import (
	"strconv"

	"spendhook/events/eventtype"
	"spendhook/events/operational"
)

// disabledNotice tells that a change disables a subscriber because of its
// endpoint. What a person disables needs no telling.
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

// healthNotices are what a sample may be about to tell; lua/health.lua fills in
// what stands after an @. Each run of failures has its own ids.
func (s *Store) healthNotices(sample Sample) (failing, recovered string, err error) {
	if s.opts.Operational == nil {
		return "", "", nil
	}
	n := operational.Event{
		ID:   "subscriber-failing-" + sample.Subscriber.String() + "-@since",
		Type: eventtype.SubscriberFailing, Company: sample.Company, At: sample.At,
		Metadata: map[string]any{
			"subscriberUuid": sample.Subscriber, "consecutiveFailures": "@failures", "failingSince": "@failingSince",
		},
	}
	if failing, err = s.opts.Operational.Encode(n); err != nil {
		return "", "", err
	}
	n.ID = "subscriber-recovered-" + sample.Subscriber.String() + "-@since"
	n.Type, n.Metadata = eventtype.SubscriberRecovered, map[string]any{"subscriberUuid": sample.Subscriber}
	recovered, err = s.opts.Operational.Encode(n)
	return failing, recovered, err
}
