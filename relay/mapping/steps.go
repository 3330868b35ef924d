package mapping

import (
	"fmt"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

const (
	// maxSteps bounds an evaluation. Steps are the same on every machine, so what becomes of a record does not depend
	// on how busy this one is, as it would with a limit of time.
	maxSteps = 2_000_000
	// stepBytes is how much text is read in a step.
	stepBytes = 10
	// inputName is the variable that has the *input. No expression can have this name.
	inputName = "@input"
)

// count has each operator, function, variable and loop counted, and maps read in a fixed order. The limit of cel-go
// (cel.CostLimit) is not used: to count the steps of a loop, it takes time that grows with the square of their number.
func count(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	switch node := i.(type) {
	case interpreter.InterpretableConst:
		return i, nil
	case interpreter.InterpretableAttribute:
		return countedAttribute{node}, nil
	case interpreter.InterpretableCall:
		return countedCall{node}, nil
	}
	return counted{i}, nil
}

type counted struct{ interpreter.InterpretableV2 }

func (c counted) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	return step(c.InterpretableV2, frame)
}

func (c counted) Eval(vars interpreter.Activation) ref.Val { return c.Exec(interpreter.AsFrame(vars)) }

type countedAttribute struct {
	interpreter.InterpretableAttribute
}

func (c countedAttribute) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	return step(c.InterpretableAttribute, frame)
}

func (c countedAttribute) Eval(vars interpreter.Activation) ref.Val {
	return c.Exec(interpreter.AsFrame(vars))
}

type countedCall struct{ interpreter.InterpretableCall }

func (c countedCall) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	return step(c.InterpretableCall, frame)
}

func (c countedCall) Eval(vars interpreter.Activation) ref.Val {
	return c.Exec(interpreter.AsFrame(vars))
}

var errSteps = problem(fmt.Sprintf("the expression takes more than %d steps", maxSteps))

// step evaluates a node. What it yields is counted by its size, since the operator or the function around it may read all
// of it.
func step(node interpreter.InterpretableV2, frame *interpreter.ExecutionFrame) ref.Val {
	found, _ := frame.ResolveName(inputName)
	in, isRecord := found.(*input)
	if !isRecord { // cel-go evaluates a constant, while it compiles
		return node.Exec(frame)
	}
	if in.steps > maxSteps {
		return types.WrapErr(errSteps)
	}
	v := node.Exec(frame)
	in.steps += 1 + length(v)/stepBytes
	_, isObject := v.(*object)
	if m, ok := v.(traits.Mapper); ok && !isObject {
		return ordered{m}
	}
	return v
}

// length is how many bytes a text has, or the JSON of an object or a list; 0 for other values.
func length(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
	case *object:
		return len(v.raw)
	case *list:
		return len(v.raw)
	case number:
		return len(v.text)
	}
	return 0
}
