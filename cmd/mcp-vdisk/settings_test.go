package main

import "testing"

// Only the operator decides about packages, unless he lets clients do it.
func TestApprovers(t *testing.T) {
	for text, want := range map[string]struct{ valid, elicit bool }{
		``:                                       {true, false},
		`env.approvers = "operator"`:             {true, false},
		`env.approvers = "operator,client"`:      {true, true},
		`env.approvers = "client"`:               {false, false},
		`env.approvers = "client,operator"`:      {false, false},
		`env.approvers = "operator, client"`:     {false, false},
		`env.approvers = ""`:                     {false, false},
		`env.approvers = ["operator"]`:           {false, false},
		`env.approvers = true`:                   {false, false},
		"[env]\napprovers = \"operator,client\"": {true, true},
	} {
		set, _, err := parseSettings(text, "config.toml")
		if (err == nil) != want.valid || set.env.elicit != want.elicit {
			t.Errorf("%s: %v, %v", text, set.env.elicit, err)
		}
	}
}
