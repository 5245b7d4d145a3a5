package policy

// Form is the card as a question of MCP (elicitation/create): its text, and a schema of
// one value, "decision", which is one of the card's choices. There is no default, so that
// nothing is approved by just confirming. Who answers is known to the client alone.
//
// schema is nil when there is nothing to decide.
func (c Card) Form() (message string, schema map[string]any) {
	p := c.page(maxColumns)
	if len(c.Choices) == 0 {
		p.head("There is nothing to decide.")
		return p.String(), nil
	}
	p.head("Your decision")
	var values []string
	for _, choice := range c.Choices {
		values = append(values, string(choice))
		p.bullet(string(choice) + ": " + meanings[choice])
	}
	return p.String(), map[string]any{
		"type": "object",
		"properties": map[string]any{
			"decision": map[string]any{
				"type":        "string",
				"title":       "Decision",
				"description": "What happens with these packages",
				"enum":        values,
			},
		},
		"required": []string{"decision"},
	}
}

var meanings = map[Choice]string{
	Approve:  "this workspace gets exactly these packages",
	Isolated: "it gets them in a layer of its own, in the place of the base",
	Deny:     "it does not get them",
}
