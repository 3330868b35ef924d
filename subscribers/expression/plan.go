package expression

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"github.com/cockroachdb/apd/v3"
)

// node is a part of a compiled expression. Its value is constant if it does not need an event.
type node struct {
	eval     func(*run) (value, error)
	constant bool
}

// planner turns a syntax tree into nodes.
type planner struct {
	tree   *ast.AST
	text   []rune
	scopes []string // names of the variables of macros, the innermost last; the index is the slot
	slots  int

	metadata     bool // the expression reads the metadata
	instructions int  // of its regular expressions
}

func (p *planner) at(e ast.Expr, format string, args ...any) error {
	return at(p.tree.SourceInfo().GetStartLocation(e.ID()), format, args...)
}

// checkLimits bounds the tree, and so the time and memory of the check of its types.
func (p *planner) checkLimits() error {
	nodes, macros := 0, 0
	var walk func(e ast.Expr, depth, nesting int) error
	walk = func(e ast.Expr, depth, nesting int) error {
		nodes++
		inside := nesting
		if e.Kind() == ast.ComprehensionKind {
			macros, inside = macros+1, nesting+1
		}
		switch {
		case nodes > maxNodes:
			return p.at(e, "more than %d operators and values", maxNodes)
		case depth > 4*maxDepth: // a macro and a chain of && are deeper than they look
			return p.at(e, "nested too deep")
		case macros > maxMacros:
			return p.at(e, "more than %d macros (all, exists, exists_one, filter, map)", maxMacros)
		case inside > maxNesting:
			return p.at(e, "macros nested more than %d deep", maxNesting)
		case e.Kind() == ast.StructKind:
			return p.at(e, "messages are not supported")
		}
		for i, child := range children(e) {
			in := inside
			if i == 0 { // the list of a macro is outside of its loop
				in = nesting
			}
			if err := walk(child, depth+1, in); err != nil {
				return err
			}
		}
		return nil
	}
	return walk(p.tree.Expr(), 0, 0)
}

func children(e ast.Expr) []ast.Expr {
	switch e.Kind() { //nolint:exhaustive // the others have none
	case ast.CallKind:
		call := e.AsCall()
		if call.IsMemberFunction() {
			return append([]ast.Expr{call.Target()}, call.Args()...)
		}
		return call.Args()
	case ast.SelectKind:
		return []ast.Expr{e.AsSelect().Operand()}
	case ast.ListKind:
		return e.AsList().Elements()
	case ast.MapKind:
		var all []ast.Expr
		for _, entry := range e.AsMap().Entries() {
			all = append(all, entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
		}
		return all
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		return []ast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()}
	}
	return nil
}

var numberLiteral = regexp.MustCompile(`^-?\s*[0-9.][0-9.]*([eE][+-]?[0-9]+)?`)

// numbersToDecimals replaces each number literal by decimal("..."), with the digits of the text: a
// literal of the parser is a binary number.
func (p *planner) numbersToDecimals() {
	last := int64(0)
	for id := range p.tree.IDs() {
		last = max(last, id)
	}
	factory := ast.NewExprFactory()
	var walk func(e ast.Expr)
	walk = func(e ast.Expr) {
		for _, child := range children(e) {
			walk(child)
		}
		if e.Kind() != ast.LiteralKind {
			return
		}
		var text string
		switch v := e.AsLiteral().(type) {
		case types.Int:
			text = strconv.FormatInt(int64(v), 10)
		case types.Uint:
			text = strconv.FormatUint(uint64(v), 10)
		case types.Double:
			text = fmt.Sprint(float64(v))
			if place, ok := p.tree.SourceInfo().GetOffsetRange(e.ID()); ok && int(place.Start) < len(p.text) {
				if digits := numberLiteral.FindString(string(p.text[place.Start:])); digits != "" {
					text = strings.Join(strings.Fields(digits), "")
				}
			}
		default:
			return
		}
		last++
		e.SetKindCase(factory.NewCall(e.ID(), "decimal", factory.NewLiteral(last, types.String(text))))
	}
	walk(p.tree.Expr())
}

func (p *planner) plan(e ast.Expr) (node, error) {
	switch e.Kind() { //nolint:exhaustive // the others are refused
	case ast.LiteralKind:
		return p.literal(e)
	case ast.IdentKind:
		return p.ident(e)
	case ast.SelectKind:
		return p.selection(e)
	case ast.ListKind:
		return p.list(e)
	case ast.MapKind:
		return p.object(e)
	case ast.CallKind:
		return p.call(e)
	case ast.ComprehensionKind:
		return p.comprehension(e.AsComprehension())
	}
	return node{}, p.at(e, "not supported")
}

func (p *planner) planAll(list []ast.Expr) (nodes []node, constant bool, err error) {
	constant = true
	for _, e := range list {
		n, err := p.plan(e)
		if err != nil {
			return nil, false, err
		}
		nodes, constant = append(nodes, n), constant && n.constant
	}
	return nodes, constant, nil
}

func (p *planner) literal(e ast.Expr) (node, error) {
	var v value
	switch literal := e.AsLiteral().(type) {
	case types.Bool:
		v = bool(literal)
	case types.String:
		v = string(literal)
	case types.Null:
	default:
		return node{}, p.at(e, "a value of the type %s is not supported", literal.Type().TypeName())
	}
	return node{constant: true, eval: func(r *run) (value, error) { return v, r.spend(1) }}, nil
}

func (p *planner) ident(e ast.Expr) (node, error) {
	name := e.AsIdent()
	for slot, variable := range slices.Backward(p.scopes) {
		if variable == name {
			return node{eval: func(r *run) (value, error) { return r.loaded(r.vars[slot]) }}, nil
		}
	}
	field, ok := fields[strings.TrimPrefix(name, ".")]
	if !ok {
		return node{}, p.at(e, "%s is not a value", name)
	}
	p.metadata = p.metadata || strings.TrimPrefix(name, ".") == "metadata"
	return node{eval: func(r *run) (value, error) { return r.loaded(field(r.event)) }}, nil
}

// loaded is a value that was stored. An error may be stored in its place.
func (r *run) loaded(v value) (value, error) {
	if err := r.spend(1); err != nil {
		return nil, err
	}
	if err, failed := v.(error); failed {
		return nil, err
	}
	return v, nil
}

func (p *planner) selection(e ast.Expr) (node, error) {
	field, test := e.AsSelect().FieldName(), e.AsSelect().IsTestOnly()
	operand, err := p.plan(e.AsSelect().Operand())
	return node{eval: func(r *run) (value, error) {
		v, err := operand.eval(r)
		if err != nil {
			return nil, err
		}
		o, ok := v.(*object)
		if !ok {
			return nil, noOverload("."+field, v)
		}
		v, ok = o.fields[field]
		switch {
		case test:
			return ok, r.spend(1)
		case !ok:
			return nil, noKey(field)
		}
		return r.loaded(v)
	}}, err
}

func (p *planner) list(e ast.Expr) (node, error) {
	nodes, constant, err := p.planAll(e.AsList().Elements())
	if err != nil {
		return node{}, err
	}
	return p.fold(e, node{constant: constant, eval: func(r *run) (value, error) {
		if err := r.making(valueBytes * (1 + len(nodes))); err != nil {
			return nil, err
		}
		l := &list{items: make([]value, len(nodes)), weight: 1}
		for i, n := range nodes {
			if l.items[i], err = n.eval(r); err != nil {
				return nil, err
			}
			l.weight = addWeight(l.weight, weight(l.items[i]))
		}
		return l, nil
	}})
}

func (p *planner) object(e ast.Expr) (node, error) {
	nodes, constant, err := p.planAll(children(e))
	if err != nil {
		return node{}, err
	}
	for i := 0; i < len(nodes); i += 2 {
		if !nodes[i].constant {
			continue
		}
		if key, err := nodes[i].eval(&run{}); err == nil && kind(key) != "string" {
			return node{}, p.at(e, "%w", errMapKey)
		}
	}
	return p.fold(e, node{constant: constant, eval: func(r *run) (value, error) {
		if err := r.making(4 * valueBytes * (1 + len(nodes))); err != nil {
			return nil, err
		}
		o := &object{fields: make(map[string]value, len(nodes)/2), weight: 1}
		for i := 0; i < len(nodes); i += 2 {
			key, err := nodes[i].eval(r)
			if err != nil {
				return nil, err
			}
			name, ok := key.(string)
			if !ok {
				return nil, errMapKey
			}
			v, err := nodes[i+1].eval(r)
			if err != nil {
				return nil, err
			}
			o.fields[name] = v
			o.weight = addWeight(o.weight, weight(name)+weight(v))
		}
		return o, nil
	}})
}

var errMapKey = errors.New("the key of a map must be a string")

// fold replaces a node that is constant by its value. What fails always is refused.
func (p *planner) fold(e ast.Expr, n node) (node, error) {
	if !n.constant {
		return n, nil
	}
	v, err := n.eval(&run{})
	if err != nil {
		return node{}, p.at(e, "%w", err)
	}
	return node{constant: true, eval: func(r *run) (value, error) { return v, r.spend(1) }}, nil
}

func (p *planner) call(e ast.Expr) (node, error) {
	name, args := e.AsCall().FunctionName(), children(e)
	if name == "matches" {
		return p.matches(e, args)
	}
	nodes, constant, err := p.planAll(args)
	if err != nil {
		return node{}, err
	}
	switch name {
	case "_&&_":
		return node{eval: logical(nodes[0], nodes[1], false)}, nil
	case "_||_":
		return node{eval: logical(nodes[0], nodes[1], true)}, nil
	case "_?_:_":
		return node{eval: condition(nodes[0], nodes[1], nodes[2])}, nil
	case "@not_strictly_false":
		return node{eval: notStrictlyFalse(nodes[0])}, nil
	}
	apply, ok := functions[name]
	if !ok {
		return node{}, p.at(e, "%s is not supported", name)
	}
	if err := meaningless(name, nodes); err != nil {
		return node{}, p.at(e, "%w", err)
	}
	if name == "_+_" && args[0].Kind() == ast.IdentKind && args[0].AsIdent() == resultName {
		apply = appendInPlace
	}
	return p.fold(e, node{constant: constant, eval: func(r *run) (value, error) {
		if err := r.spend(1); err != nil {
			return nil, err
		}
		var few [2]value
		values := few[:0]
		for _, n := range nodes {
			v, err := n.eval(r)
			if err != nil {
				return nil, err
			}
			values = append(values, v)
		}
		return apply(r, values)
	}})
}

// meaningless returns an error for a second operand that is constant and fails for every event.
func meaningless(name string, nodes []node) error {
	if len(nodes) < 2 || !nodes[1].constant {
		return nil
	}
	v, err := nodes[1].eval(&run{})
	if err != nil {
		return err
	}
	number, isNumber := v.(*apd.Decimal)
	switch {
	case isNumber && number.IsZero() && (name == "_/_" || name == "_%_"):
		return errors.New("division by zero")
	case isNumber && name == "_[_]":
		if i, err := number.Int64(); err != nil || i < 0 {
			return errors.New("the index of a list must be a whole number from 0 on")
		}
	case parts[name] != nil:
		_, err = zone(&run{}, v)
	}
	return err
}

// resultName is the variable in which a macro gathers its result. No expression can name it, so its
// value has no other user and is changed in place.
var resultName = ast.NewExprFactory().AccuIdentName()

// logical is && (decides: false) and || (decides: true). As CEL has it, an operand that decides does so
// although the other fails.
func logical(left, right node, decides bool) func(*run) (value, error) {
	operand := func(r *run, n node) (bool, error) {
		v, err := n.eval(r)
		if err != nil {
			return false, err
		}
		b, ok := v.(bool)
		if !ok {
			return false, noOverload("&& or ||", v)
		}
		return b, nil
	}
	return func(r *run) (value, error) {
		if err := r.spend(1); err != nil {
			return nil, err
		}
		l, failed := operand(r, left)
		if r.stopped != nil || failed == nil && l == decides {
			return l, r.stopped
		}
		b, err := operand(r, right)
		if err != nil {
			return nil, err
		}
		if b == decides {
			return b, nil
		}
		return b, failed
	}
}

func condition(test, yes, no node) func(*run) (value, error) {
	return func(r *run) (value, error) {
		v, err := test.eval(r)
		if err != nil {
			return nil, err
		}
		switch b, ok := v.(bool); {
		case !ok:
			return nil, noOverload("?", v)
		case b:
			return yes.eval(r)
		}
		return no.eval(r)
	}
}

// notStrictlyFalse is what the macros go on by: an error may still be decided by a later element.
func notStrictlyFalse(n node) func(*run) (value, error) {
	return func(r *run) (value, error) {
		v, err := n.eval(r)
		return err != nil || v != false, r.stopped
	}
}

// comprehension is what the parser makes of a macro: a loop over a list, or over the keys of a map.
func (p *planner) comprehension(c ast.ComprehensionExpr) (node, error) {
	before, _, err := p.planAll([]ast.Expr{c.IterRange(), c.AccuInit()})
	if err != nil {
		return node{}, err
	}
	result, each := len(p.scopes), len(p.scopes)+1
	p.scopes = append(p.scopes, c.AccuVar(), c.IterVar())
	p.slots = max(p.slots, len(p.scopes))
	inside, _, err := p.planAll([]ast.Expr{c.LoopCondition(), c.LoopStep(), c.Result()})
	p.scopes = p.scopes[:result]
	if err != nil {
		return node{}, err
	}
	return node{eval: func(r *run) (value, error) {
		v, err := before[0].eval(r)
		if err != nil {
			return nil, err
		}
		items, err := elements(r, v)
		if err != nil {
			return nil, err
		}
		if r.vars[result], err = before[1].eval(r); err != nil {
			return nil, err
		}
		for _, r.vars[each] = range items {
			more, err := inside[0].eval(r)
			if err != nil {
				return nil, err
			}
			if more == false {
				break
			}
			v, err := inside[1].eval(r)
			if r.stopped != nil {
				return nil, r.stopped
			}
			if r.vars[result] = v; err != nil {
				r.vars[result] = err
			}
		}
		return inside[2].eval(r)
	}}, nil
}

func elements(r *run, v value) ([]value, error) {
	switch v := v.(type) {
	case *list:
		return v.items, nil
	case *object:
		if err := r.making(valueBytes * len(v.fields)); err != nil {
			return nil, err
		}
		keys := make([]value, 0, len(v.fields))
		for key := range v.fields {
			keys = append(keys, key)
		}
		slices.SortFunc(keys, func(a, b value) int { return strings.Compare(a.(string), b.(string)) })
		return keys, nil
	}
	return nil, noOverload("a macro", v)
}

const (
	maxPattern      = 256 // bytes of a regular expression
	maxInstructions = 500 // about, of all regular expressions of an expression, compiled
)

func (p *planner) matches(e ast.Expr, args []ast.Expr) (node, error) {
	text, err := p.plan(args[0])
	if err != nil {
		return node{}, err
	}
	var pattern types.String
	ok := args[1].Kind() == ast.LiteralKind
	if ok {
		pattern, ok = args[1].AsLiteral().(types.String)
	}
	if !ok {
		return node{}, p.at(e, "the regular expression of matches must be a string literal")
	}
	size, err := sizeOfRegexp(string(pattern))
	if err != nil {
		return node{}, p.at(args[1], "%w", err)
	}
	if p.instructions += size; p.instructions > maxInstructions {
		return node{}, p.at(args[1], "the regular expressions are too large: their repetitions, written out, are more than %d characters; a class such as \\pL counts as up to 130", maxInstructions)
	}
	// In a group, it is not compiled into a one-pass program, which has a copy of a class for each ^ before it.
	compiled, err := regexp.Compile("(" + string(pattern) + ")")
	if err != nil {
		return node{}, p.at(args[1], "%w", err)
	}
	return node{eval: func(r *run) (value, error) {
		v, err := text.eval(r)
		if err != nil {
			return nil, err
		}
		s, ok := v.(string)
		if !ok {
			return nil, noOverload("matches", v)
		}
		// The engine runs each instruction at most once a byte; 16 of them take about as long as a step.
		if err := r.spend(1 + (1+len(s))*size/16); err != nil {
			return nil, err
		}
		return compiled.MatchString(s), nil
	}}, nil
}

func sizeOfRegexp(pattern string) (int, error) {
	if len(pattern) > maxPattern {
		return 0, fmt.Errorf("a regular expression has at most %d bytes", maxPattern)
	}
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, err
	}
	return instructions(tree), nil
}

// instructions is about the number of instructions of a regular expression, with its repetitions
// written out and a large class of characters counted by its size.
func instructions(tree *syntax.Regexp) int {
	n := 1 + len(tree.Rune)
	if tree.Op == syntax.OpCharClass {
		n = 1 + len(tree.Rune)/10 // 40 bytes, as an instruction
	}
	for _, sub := range tree.Sub {
		n += instructions(sub)
	}
	if tree.Op == syntax.OpRepeat {
		n *= max(tree.Min, tree.Max, 1)
	}
	return min(n, 1<<20)
}
