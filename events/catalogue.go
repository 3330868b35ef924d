package events

import (
	"maps"
	"slices"
	"strings"
)

// The operational events are raised by the daemon itself, about deliveries; the
// script that makes the change writes them (see Notice).
const (
	SubscriberDisabled  = "SUBSCRIBER_DISABLED"
	SubscriberFailing   = "SUBSCRIBER_FAILING"
	SubscriberRecovered = "SUBSCRIBER_RECOVERED"
	DeliveryDead        = "DELIVERY_DEAD"
)

// TypeInfo describes an event type to people.
type TypeInfo struct{ Name, Description string }

var operational = []TypeInfo{
	{SubscriberDisabled, "a subscriber was disabled because it kept failing or answered 410 Gone; raised by the daemon only"},
	{SubscriberFailing, "a subscriber has failed several attempts in a row; raised by the daemon only"},
	{SubscriberRecovered, "a subscriber that was failing accepted a delivery again; raised by the daemon only"},
	{DeliveryDead, "a delivery was given up after its last attempt; raised by the daemon only"},
}

// The types of specification section 6.
var specified = []TypeInfo{
	{"PAYMENT_PAID", "a payment was paid"},
	{"CARD_CREATION_REQUEST_CREATED", "a card creation request was created"},
	{"CARD_CREATION_REQUEST_ERROR", "a card creation request failed; carries an error code and an error message"},
}

// IsOperational reports whether the daemon itself raises events of this type.
func IsOperational(name string) bool {
	return slices.ContainsFunc(operational, func(t TypeInfo) bool { return t.Name == name })
}

// Reserved reports whether name is a type that only the daemon itself raises, now
// or in a later release.
func Reserved(name string) bool {
	return strings.HasPrefix(name, "SUBSCRIBER_") || IsOperational(name)
}

// Catalogue knows the event types. It is immutable and safe for concurrent
// use; a nil one knows the built-in types and allows any.
type Catalogue struct {
	types  map[string]TypeInfo
	strict bool
}

// NewCatalogue holds the specification's types, the operational ones and extra
// ones, which may also redescribe a built-in type. A strict catalogue allows no
// other names.
func NewCatalogue(extra []TypeInfo, strict bool) *Catalogue {
	c := &Catalogue{types: map[string]TypeInfo{}, strict: strict}
	for _, t := range slices.Concat(specified, operational, extra) {
		c.types[t.Name] = t
	}
	return c
}

// Types lists the known types by name.
func (c *Catalogue) Types() []TypeInfo {
	if c == nil {
		c = NewCatalogue(nil, false)
	}
	return slices.SortedFunc(maps.Values(c.types), func(a, b TypeInfo) int { return strings.Compare(a.Name, b.Name) })
}

// Known reports whether name is a known type.
func (c *Catalogue) Known(name string) bool {
	return slices.ContainsFunc(c.Types(), func(t TypeInfo) bool { return t.Name == name })
}

// Allows reports whether events and subscriptions may use name: any when the
// catalogue is not strict, else only known ones.
func (c *Catalogue) Allows(name string) bool {
	return c == nil || !c.strict || c.Known(name)
}
