package eventtype

import (
	"slices"
	"testing"
)

func TestCatalogue(t *testing.T) {
	t.Parallel()
	c := NewCatalogue([]Type{{Name: "OURS", Description: "ours"}, {Name: "PAYMENT_PAID", Description: "redescribed"}}, false)
	var names []string
	for _, info := range c.Types() {
		names = append(names, info.Name)
		if info.Description == "" || info.Name == "PAYMENT_PAID" && info.Description != "redescribed" {
			t.Errorf("description of %s is %q", info.Name, info.Description)
		}
	}
	want := []string{
		"CARD_CREATION_REQUEST_CREATED", "CARD_CREATION_REQUEST_ERROR", "DELIVERY_DEAD", "OURS", "PAYMENT_PAID",
		"SUBSCRIBER_DISABLED", "SUBSCRIBER_FAILING", "SUBSCRIBER_RECOVERED",
	}
	if !slices.Equal(names, want) {
		t.Errorf("types %q, want %q", names, want)
	}
	if !c.allows("THEIRS") {
		t.Error("a catalogue that is not strict must allow any type")
	}
	if strict := NewCatalogue([]Type{{Name: "OURS"}}, true); !strict.allows("OURS") || !strict.allows("PAYMENT_PAID") || strict.allows("THEIRS") {
		t.Error("a strict catalogue must allow its own types and the built-in ones alone")
	}
	var none *Catalogue
	if !none.allows("THEIRS") || len(none.Types()) != 7 {
		t.Error("a nil catalogue must know the built-in types and allow any")
	}
	if !Reserved(SubscriberFailing) || !Reserved(DeliveryDead) || Reserved("PAYMENT_PAID") {
		t.Error("Reserved must report the daemon's own types, and no others")
	}
}
