package remote

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"go.yaml.in/yaml/v4"

	"spendhook/internal/terminal"
)

// output says how answers are printed.
type output struct {
	Format string `name:"output" short:"o" enum:"table,json,yaml,name" default:"table" help:"Output format: table, json, yaml, or name (ids only)."`
}

// column is one of a table: its heading, and the path of its value in an item.
type column struct{ heading, path string }

// table is how a list is shown. The first column is the name of an item.
type table []column

// print writes one thing: what people read is one line for each field.
func (o output) print(out io.Writer, text []byte) error {
	switch o.Format {
	case "json":
		_, err := fmt.Fprintf(out, "%s\n", indented(text))
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
		fmt.Fprintf(w, "%s\t%s\n", l.path, l.text)
	}
	return w.Flush()
}

// printList writes items in one of the ways.
func (o output) printList(out io.Writer, t table, items []node) error {
	switch o.Format {
	case "json", "yaml":
		texts := make([][]byte, len(items))
		for i, item := range items {
			texts[i] = item.text
		}
		text := append(append([]byte{'['}, bytes.Join(texts, []byte{','})...), ']')
		return o.print(out, text)
	case "name":
		for _, item := range items {
			fmt.Fprintln(out, item.at(t[0].path))
		}
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i, c := range t {
		fmt.Fprint(w, between(i), c.heading)
	}
	for _, item := range items {
		fmt.Fprintln(w)
		for i, c := range t {
			fmt.Fprint(w, between(i), item.at(c.path))
		}
	}
	fmt.Fprintln(w)
	return w.Flush()
}

func between(i int) string {
	if i == 0 {
		return ""
	}
	return "\t"
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

// printYAML prints JSON, whose fields stay in their order, as YAML.
func printYAML(out io.Writer, text []byte) error {
	var whole yaml.Node
	if err := yaml.Unmarshal(text, &whole); err != nil {
		return err
	}
	plain(&whole)
	e := yaml.NewEncoder(out)
	e.SetIndent(2)
	if err := e.Encode(&whole); err != nil {
		return err
	}
	return e.Close()
}

func plain(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		plain(child)
	}
}

// node is a part of an answer, with the fields of an object in their order.
type node struct {
	text   []byte
	fields []field         // of an object
	items  []node          // of an array
	value  json.RawMessage // of anything else
}

type field struct {
	name string
	node
}

// parse reads JSON.
func parse(text []byte) (node, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	n, err := parseNext(d)
	if err != nil {
		return n, fmt.Errorf("the answer is not JSON: %w", err)
	}
	return n, nil
}

func parseNext(d *json.Decoder) (node, error) {
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return node{}, err
	}
	n := node{text: raw}
	inner := json.NewDecoder(bytes.NewReader(raw))
	if raw[0] != '{' && raw[0] != '[' {
		n.value = raw
		return n, nil
	}
	if _, err := inner.Token(); err != nil {
		return n, err
	}
	for inner.More() {
		var f field
		if raw[0] == '{' {
			name, err := inner.Token()
			if err != nil {
				return n, err
			}
			f.name, _ = name.(string)
		}
		var err error
		if f.node, err = parseNext(inner); err != nil {
			return n, err
		}
		if raw[0] == '{' {
			n.fields = append(n.fields, f)
		} else {
			n.items = append(n.items, f.node)
		}
	}
	return n, nil
}

// get is the field of that name; it has no text when there is none.
func (n node) get(name string) node {
	for _, f := range n.fields {
		if f.name == name {
			return f.node
		}
	}
	return node{}
}

// at is what stands at a path of names with dots between them, "" when nothing does.
func (n node) at(path string) string {
	for name := range strings.SplitSeq(path, ".") {
		n = n.get(name)
	}
	return n.scalar()
}

// scalar is a value for people, on one line.
func (n node) scalar() string {
	var text string
	switch {
	case n.fields != nil:
		return terminal.Escape(string(n.text), "")
	case n.items != nil:
		parts := make([]string, len(n.items))
		for i, item := range n.items {
			parts[i] = item.scalar()
		}
		return strings.Join(parts, ",")
	case json.Unmarshal(n.value, &text) == nil:
		return terminal.Escape(text, "")
	case string(n.value) == "null":
		return ""
	}
	return string(n.value)
}

type entry struct{ path, text string }

// lines are the values of an object, each at its path; an array of objects has one line
// for each.
func (n node) lines(path string) []entry {
	var all []entry
	switch {
	case n.fields != nil:
		for _, f := range n.fields {
			all = append(all, f.lines(strings.TrimPrefix(path+"."+f.name, "."))...)
		}
		return all
	case len(n.items) > 0 && n.items[0].fields != nil:
		for i, item := range n.items {
			all = append(all, item.lines(fmt.Sprintf("%s.%d", path, i))...)
		}
		return all
	}
	return []entry{{path, n.scalar()}}
}
