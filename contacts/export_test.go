package contacts

// Round is what Run does once a minute.
var Round = (*Notifier).round

// Plain is what a message has of the name of a subscriber.
var Plain = plain
