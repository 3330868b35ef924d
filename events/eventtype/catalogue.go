package eventtype

import (
	"maps"
	"slices"
	"strings"
)

// The operational events are raised by the daemon itself, about deliveries; the
// script that makes the change writes them (see package operational).
const (
	SubscriberDisabled  = "SUBSCRIBER_DISABLED"
	SubscriberFailing   = "SUBSCRIBER_FAILING"
	SubscriberRecovered = "SUBSCRIBER_RECOVERED"
	DeliveryDead        = "DELIVERY_DEAD"
)

var operational = []Type{
	{Name: SubscriberDisabled, Description: "a subscriber was disabled because it kept failing or answered 410 Gone; raised by the daemon only"},
	{Name: SubscriberFailing, Description: "a subscriber has failed several attempts in a row; raised by the daemon only"},
	{Name: SubscriberRecovered, Description: "a subscriber that was failing accepted a delivery again; raised by the daemon only"},
	{Name: DeliveryDead, Description: "a delivery was given up after its last attempt; raised by the daemon only"},
}

// The types of section 6 of the interface specification.
var specified = []Type{
	{Name: "PAYMENT_PAID", Description: "a payment was paid"},
	{Name: "CARD_CREATION_REQUEST_CREATED", Description: "a card creation request was created"},
	{Name: "CARD_CREATION_REQUEST_ERROR", Description: "a card creation request failed; carries an error code and an error message"},
}

// IsOperational reports whether the daemon itself raises events of this type.
func IsOperational(name string) bool {
	return slices.ContainsFunc(operational, func(t Type) bool { return t.Name == name })
}

// Reserved reports whether name is a type that only the daemon itself raises, now
// or in a later release.
func Reserved(name string) bool {
	return strings.HasPrefix(name, "SUBSCRIBER_") || IsOperational(name)
}

// Catalogue has the known event types. It is immutable and safe for concurrent use; a nil
// Catalogue has the built-in types and allows any type.
type Catalogue struct {
	types  map[string]Type
	strict bool
}

// NewCatalogue holds the built-in types and extra ones, which may also redescribe a
// built-in type. A strict catalogue allows no other names.
func NewCatalogue(extra []Type, strict bool) *Catalogue {
	c := &Catalogue{types: map[string]Type{}, strict: strict}
	for _, t := range slices.Concat(specified, operational, extra) {
		c.types[t.Name] = t
	}
	return c
}

// Types lists the known types by name, each with its description only.
func (c *Catalogue) Types() []Type {
	if c == nil {
		c = NewCatalogue(nil, false)
	}
	return slices.SortedFunc(maps.Values(c.types), func(a, b Type) int { return strings.Compare(a.Name, b.Name) })
}

// known reports whether name is a known type.
func (c *Catalogue) known(name string) bool {
	if c == nil {
		c = NewCatalogue(nil, false)
	}
	_, ok := c.types[name]
	return ok
}

// Allows reports whether events and subscriptions may use name: any when the
// catalogue is not strict, else only known ones.
func (c *Catalogue) Allows(name string) bool {
	return c == nil || !c.strict || c.known(name)
}
