package mapping

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

const (
	// maxParts is how many texts hash takes.
	maxParts = 8
	// maxShown is how many characters of a compiler's message are shown.
	maxShown = 200
)

// environment has the names and functions that expressions may use. It is made on first use.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	hashes := make([]cel.FunctionOpt, maxParts)
	for i := range hashes {
		args := slices.Repeat([]*cel.Type{cel.StringType}, i+1)
		binding := cel.FunctionBinding(hash)
		switch len(args) { // cel-go calls functions of one and of two arguments in another way
		case 1:
			binding = cel.UnaryBinding(func(a ref.Val) ref.Val { return hash(a) })
		case 2:
			binding = cel.BinaryBinding(func(a, b ref.Val) ref.Val { return hash(a, b) })
		}
		hashes[i] = cel.Overload(fmt.Sprintf("hash_%d", i+1), args, cel.StringType, binding)
	}
	return cel.NewEnv(
		cel.Variable("value", cel.DynType),
		cel.Variable("text", cel.StringType),
		cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("key", cel.StringType),
		cel.Variable("time", cel.TimestampType),
		cel.Variable("from", cel.MapType(cel.StringType, cel.DynType)),
		cel.Function("hash", hashes...),
	)
})

// hash returns the first 32 hexadecimal digits of the SHA-256 of texts, each after its length in 8 bytes. Ids are made of
// it, so it must never change.
func hash(parts ...ref.Val) ref.Val {
	sum := sha256.New()
	for _, part := range parts {
		text, ok := part.(types.String)
		if !ok {
			return types.MaybeNoSuchOverloadErr(part)
		}
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		sum.Write([]byte(text))
	}
	return types.String(hex.EncodeToString(sum.Sum(nil)[:16]))
}

// expression is a compiled expression. It is safe for concurrent use.
type expression struct {
	program cel.Program
	source  *ast.SourceInfo
}

// compile compiles an expression whose result must have one of the types. The error has the line and column of the
// mistake.
func compile(text string, result []*cel.Type) (*expression, error) {
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("make the environment of expressions: %w", err)
	}
	checked, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, firstOf(issues, text)
	}
	tree := checked.NativeRep()
	if err := checkPatterns(tree); err != nil {
		return nil, err
	}
	if t := checked.OutputType(); !t.IsExactType(cel.DynType) && !t.IsExactType(cel.NullType) && !slices.ContainsFunc(result, func(r *cel.Type) bool { return r.Kind() == t.Kind() }) {
		return nil, fmt.Errorf("must be of the type %s, and is of the type %s", names(result), t)
	}
	program, err := env.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CustomDecoratorV2(count))
	if err != nil {
		return nil, fmt.Errorf("%.*s", maxShown, err.Error())
	}
	return &expression{program, tree.SourceInfo()}, nil
}

func names(list []*cel.Type) string {
	var names []string
	for _, t := range list {
		names = append(names, t.TypeName())
	}
	return strings.Join(names, " or ")
}

// firstOf is the first of the problems of an expression.
func firstOf(issues *cel.Issues, text string) error {
	first := issues.Errors()[0]
	what, _, _ := strings.Cut(first.Message, ", expecting") // ANTLR lists all tokens that would be valid
	what, _, _ = strings.Cut(what, " expecting {")
	what, _ = strings.CutSuffix(what, " (in container '')")
	what = fmt.Sprintf("%.*s", maxShown, what)
	if plainName.MatchString(text) {
		what += "; a text needs quotation marks"
	}
	return at(first.Location, what)
}

func at(place common.Location, what string) error {
	return fmt.Errorf("line %d, column %d: %s", place.Line(), place.Column()+1, what)
}

// checkPatterns requires that patterns are constant: the time that one of a record takes has no bound.
func checkPatterns(tree *ast.AST) (err error) {
	ast.PreOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != "matches" {
			return
		}
		if args := e.AsCall().Args(); args[len(args)-1].Kind() != ast.LiteralKind {
			err = at(tree.SourceInfo().GetStartLocation(e.ID()), "the pattern of matches must be a text in quotation marks")
		}
	}))
	return err
}

// eval returns the result for a record, or an error that has no content of the record other than the name of a member.
func (e *expression) eval(in *input) (ref.Val, error) {
	in.steps = 0
	v, _, err := e.program.Eval(in)
	if in.steps > maxSteps { // || may have hidden the error
		return nil, errSteps
	}
	if err != nil {
		return nil, e.explain(err)
	}
	return v, nil
}

// plainErrors are the texts of cel-go that have no content of a record.
var plainErrors = []string{
	"division by zero", "modulus by zero", "integer overflow", "unsigned integer overflow", "duration overflow",
	"timestamp overflow",
}

// explain says why an evaluation failed.
func (e *expression) explain(err error) error {
	if known, ok := errors.AsType[problem](err); ok {
		return known
	}
	text := err.Error()
	switch {
	case strings.HasPrefix(text, "no such key"):
		_, key, _ := strings.Cut(text, ": ")
		return errors.New(strings.TrimSuffix("no such key:"+shown(key), ":"))
	case strings.HasPrefix(text, "index "):
		text = "an index is out of range"
	case strings.HasPrefix(text, "no such overload"):
		text = "an operator or a function does not take a value of this type"
	case !slices.Contains(plainErrors, text):
		text = "a value cannot be converted"
	}
	if known, ok := errors.AsType[*types.Err](err); ok {
		if place := e.source.GetStartLocation(known.NodeID()); place.Line() > 0 {
			return at(place, text)
		}
	}
	return errors.New(text)
}
