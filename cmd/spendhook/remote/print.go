package remote

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"go.yaml.in/yaml/v4"

	"spendhook/internal/terminal"
)

// output has the flag for the format of answers.
type output struct {
	Format string `name:"output" short:"o" enum:"table,json,yaml,name" default:"table" help:"Output format: table, json, yaml, or name (ids only)."`
}

// column is a column of a table: the heading, and the path of the value in an item. "a or b" is the first value
// that there is, "since a" the time since a, "until a" the time until a.
type column struct{ heading, path string }

func (c column) of(item node, now time.Time) string {
	if path, ok := strings.CutPrefix(c.path, "since "); ok {
		return ago(item.at(path), now)
	}
	if path, ok := strings.CutPrefix(c.path, "until "); ok {
		return until(item.at(path), now)
	}
	for path := range strings.SplitSeq(c.path, " or ") {
		if text := item.at(path); text != "" {
			return text
		}
	}
	return ""
}

// ago tells roughly how long ago a time is.
func ago(text string, now time.Time) string {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return text
	}
	return roughly(now.Sub(at))
}

// until tells roughly in how long a time comes.
func until(text string, now time.Time) string {
	at, err := time.Parse(time.RFC3339Nano, text)
	switch {
	case err != nil:
		return text
	case at.After(now):
		return "in " + roughly(at.Sub(now))
	}
	return "due"
}

func roughly(d time.Duration) string {
	switch d = max(d, 0); { // clocks differ
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// table has the columns of a list. The first column identifies an item.
type table []column

// print writes one object. The format table has one line for each field.
func (o output) print(out io.Writer, text []byte) error { return o.printWith(out, text, "", nil) }

// printWith is print. The format table has the items of the field list as a table of their own.
func (o output) printWith(out io.Writer, text []byte, list string, t table) error {
	switch o.Format {
	case "json":
		_, err := fmt.Fprintln(out, terminal.Escape(string(indented(text)), "\n"))
		return err
	case "yaml":
		return printYAML(out, text)
	}
	whole, err := parse(text)
	if err != nil {
		return err
	}
	if o.Format == "name" {
		_, err := fmt.Fprintln(out, nameOf(whole))
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, l := range whole.lines("") {
		if list == "" || !strings.HasPrefix(l.path+".", list+".") {
			fmt.Fprintf(w, "%s\t%s\n", l.path, l.text)
		}
	}
	if err := w.Flush(); err != nil || list == "" {
		return err
	}
	fmt.Fprintln(out)
	return t.print(out, whole.get(list).array())
}

// printList writes a list in the format of the flag.
func (o output) printList(out io.Writer, t table, items []node) error {
	switch o.Format {
	case "json", "yaml":
		texts := make([][]byte, len(items))
		for i, item := range items {
			texts[i] = item.RawMessage
		}
		text := append(append([]byte{'['}, bytes.Join(texts, []byte{','})...), ']')
		return o.print(out, text)
	case "name":
		for _, item := range items {
			fmt.Fprintln(out, item.at(t[0].path))
		}
		return nil
	}
	return t.print(out, items)
}

func (t table) print(out io.Writer, items []node) error {
	return t.write(out, items, time.Now(), terminal.Colors(out))
}

func (t table) write(out io.Writer, items []node, now time.Time, colors bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	printRow := func(cell func(column) string) {
		cells := make([]string, len(t))
		for i, c := range t {
			cells[i] = cell(c)
			if colors && (c.heading == "STATUS" || c.heading == "STATE" || c.heading == "OUTCOME") {
				cells[i] = colorOf(cells[i]) + cells[i] + "\x1b[0m"
			}
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	printRow(func(c column) string { return c.heading })
	for _, item := range items {
		printRow(func(c column) string { return c.of(item, now) })
	}
	return w.Flush()
}

// colorOf returns the escape sequence for the color of a status. All are equally long: their characters count when
// columns are aligned.
func colorOf(status string) string {
	switch status {
	case "DELIVERED", "COMPLETED", "healthy":
		return "\x1b[32m" // green
	case "DEAD", "failing", "ERROR", "REJECTED":
		return "\x1b[31m" // red
	case "PENDING", "RETRYING", "HELD", "QUEUED", "RUNNING", "paused", "disabled", "DISABLED", "unknown":
		return "\x1b[33m" // yellow
	}
	return "\x1b[39m"
}

// nameOf returns the identifying field of an item.
func nameOf(n node) string {
	for _, path := range []string{"uuid", "id", "clientId", "eventId", "subscriberUuid", "statementUuid", "companyUuid"} {
		if name := n.at(path); name != "" {
			return name
		}
	}
	return ""
}

func indented(text []byte) []byte {
	var b bytes.Buffer
	if json.Indent(&b, text, "", "  ") != nil {
		return text
	}
	return b.Bytes()
}

// printYAML prints JSON as YAML that readers of YAML 1.1 and 1.2 read alike, with the fields in the same
// order.
func printYAML(out io.Writer, text []byte) error {
	var whole yaml.Node
	if err := yaml.Unmarshal(text, &whole); err != nil {
		return err
	}
	plain(&whole)
	var b strings.Builder
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(&whole), e.Close()); err != nil {
		return err
	}
	_, err := io.WriteString(out, terminal.Escape(b.String(), "\n")) // YAML has the same escapes in quotes
	return err
}

// plain changes the style of JSON to that of YAML. It quotes strings which YAML 1.1 could read as
// something else: no is false, 12:30:45 is a number.
func plain(n *yaml.Node) {
	quoted := n.Style&yaml.DoubleQuotedStyle != 0
	switch n.Style = 0; {
	case quoted && (!plainText.MatchString(n.Value) || slices.Contains(wordsOfYAML, strings.ToLower(n.Value))):
		n.Style = yaml.DoubleQuotedStyle
	case n.Kind == yaml.ScalarNode && !quoted:
		n.Value = exponentOfYAML(n.Value)
	}
	for _, child := range n.Content {
		plain(child)
	}
}

// exponentOfYAML adds what YAML 1.1 needs to read a number with an exponent as a number: the point and
// the sign.
func exponentOfYAML(number string) string {
	mantissa, exponent, found := strings.Cut(strings.ToLower(number), "e")
	if _, err := strconv.Atoi(exponent); !found || err != nil {
		return number
	}
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	if exponent[0] != '-' && exponent[0] != '+' {
		exponent = "+" + exponent
	}
	return mantissa + "e" + exponent
}

var (
	// plainText matches strings that are no number, time or syntax in any version of YAML.
	plainText   = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_./ -]*[A-Za-z0-9])?$`)
	wordsOfYAML = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
)

// node is a JSON value of an answer.
type node struct{ json.RawMessage }

// parse checks that text is JSON.
func parse(text []byte) (node, error) {
	if !json.Valid(text) {
		return node{}, errors.New("the answer is not JSON")
	}
	return node{bytes.TrimSpace(text)}, nil
}

// get returns the field with that name, and an empty node if there is none.
func (n node) get(name string) node {
	var fields map[string]node
	_ = json.Unmarshal(n.RawMessage, &fields) // any other value has no fields
	return fields[name]
}

// array returns the items of an array, and nil for any other value.
func (n node) array() (items []node) {
	_ = json.Unmarshal(n.RawMessage, &items)
	return items
}

// items returns the items of a list, which is an array or an object with an array.
func (n node) items() []node {
	for _, name := range []string{"content", "results", "subscribers", "keys", "addresses", "items"} {
		if list := n.get(name); list.RawMessage != nil {
			return list.array()
		}
	}
	return n.array()
}

func (n node) isObject() bool { return len(n.RawMessage) > 0 && n.RawMessage[0] == '{' }

// at returns the value at a path such as "health.state", and "" if there is none.
func (n node) at(path string) string {
	for name := range strings.SplitSeq(path, ".") {
		n = n.get(name)
	}
	return n.scalar()
}

// scalar returns a value as one line of a table.
func (n node) scalar() string {
	var text string
	items := n.array()
	switch {
	case n.isObject():
		return terminal.Escape(string(n.RawMessage), "")
	case items != nil:
		parts := make([]string, len(items))
		for i, item := range items {
			parts[i] = item.scalar()
		}
		return strings.Join(parts, ",")
	case json.Unmarshal(n.RawMessage, &text) == nil: // also null, which is ""
		return terminal.Escape(text, "")
	}
	return string(n.RawMessage)
}

type entry struct{ path, text string }

// lines returns the values of an object in their order, each with its path. An array of objects has
// an entry for each value of its objects.
func (n node) lines(path string) (all []entry) {
	if items := n.array(); len(items) > 0 && items[0].isObject() {
		for i, item := range items {
			all = append(all, item.lines(fmt.Sprintf("%s.%d", path, i))...)
		}
		return all
	}
	if !n.isObject() {
		return []entry{{path, n.scalar()}}
	}
	d := json.NewDecoder(bytes.NewReader(n.RawMessage))
	_, _ = d.Token() // the brace; parse has checked the text
	for d.More() {
		name, _ := d.Token()
		var value node
		_ = d.Decode(&value)
		all = append(all, value.lines(strings.TrimPrefix(path+"."+terminal.Escape(fmt.Sprint(name), ""), "."))...)
	}
	if all == nil {
		return []entry{{path, ""}}
	}
	return all
}
