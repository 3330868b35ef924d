package contacts

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/google/uuid"

	"spendhook/subscribers"
	"spendhook/subscribers/callback"
)

// message is what is sent to a contact: plain text, with a link to unsubscribe at its end.
type message struct {
	kind        string
	id          string // the same when the message is repeated
	subject     string
	text        string
	unsubscribe string // the link
}

// maxName bounds the name of a subscriber in a message, in characters.
const maxName = 100

// plain returns the name of a subscriber, which may be an attacker's, with nothing of which a mail program or a chat makes a
// link, a mention or a format, in one line.
func plain(name string) string {
	runes := []rune(strings.Map(func(c rune) rune {
		switch {
		case unicode.IsLetter(c), unicode.IsDigit(c), unicode.IsMark(c), c == ' ', c == '-', c == '(', c == ')', c == '+', c == ',':
			return c
		}
		return ' '
	}, name))
	if len(runes) > maxName {
		runes = append(runes[:maxName-1], '…')
	}
	return strings.TrimSpace(string(runes))
}

const instant = "2006-01-02 15:04 MST"

// request asks a contact to confirm. It contains no text of the company: anybody may have named the address.
func (n *Notifier) request(company uuid.UUID, c callback.Contact) message {
	return n.message(kindConfirm, company, c, "", "Please confirm: messages about webhook endpoints", fmt.Sprintf(`The webhook service at %s was asked to send messages here when a webhook endpoint of the company
%s fails. If you want them, open this link within 7 days:

%s

If you did not expect this, you need to do nothing: nothing else is sent unless you confirm.
`, n.opts.PublicURL, company, n.link(confirmRoute, company, c)))
}

// report is the message with news about a subscriber.
func (n *Notifier) report(sub *subscribers.Subscriber, c callback.Contact, what news) message {
	subject, text := "", ""
	at := what.at.UTC().Format(instant)
	switch what.kind {
	case kindWarned:
		subject = "Webhook endpoint will be disabled"
		text = "It has been failing, and will be disabled at " + at + " unless a delivery succeeds before. From then on its deliveries wait."
		if what.at.Before(n.opts.Now()) {
			text = "It has been failing, and will be disabled after the next failure. From then on its deliveries wait."
		}
	case kindDisabled:
		subject = "Webhook endpoint was disabled"
		text = "It was disabled at " + at + ", because it "
		if sub.DisabledReason == subscribers.ReasonGone {
			text += "answered 410 Gone."
		} else {
			text += "failed for too long."
		}
		text += " Its deliveries wait. Repair the endpoint and enable the subscriber, then recover the events that were accepted meanwhile."
	case kindRecovered:
		subject = "Webhook endpoint works again"
		text = "A delivery succeeded at " + at + "."
	}
	return n.message(what.kind, sub.CompanyUUID, c, sub.UUID.String()+" "+what.id, subject+": "+plain(sub.Name),
		fmt.Sprintf("This is about the subscriber \"%s\".\n%s\n\nSubscriber: %s\nCompany: %s\nConsole: %s/console/subscribers/%s\n",
			plain(sub.Name), text, sub.UUID, sub.CompanyUUID, n.opts.PublicURL, sub.UUID))
}

func (n *Notifier) message(kind string, company uuid.UUID, c callback.Contact, about, subject, text string) message {
	leave := n.link(unsubscribeRoute, company, c)
	return message{
		kind: kind, subject: subject, unsubscribe: leave, id: digest(callback.Contact{Address: kind + " " + company.String() + " " + c.Address + " " + about}),
		text: text + "\nTo get no more messages about this company here: " + leave + "\n",
	}
}
