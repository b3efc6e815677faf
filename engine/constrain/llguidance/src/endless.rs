//! Finds rules that derive no finite text. A mask would lead into them, and no text would come out.

use std::collections::HashMap;

use llguidance::earley::{CGrammar, CSymIdx};

struct Rule {
    lhs: usize,
    missing: usize, // symbols of its right side that may be endless
}

/// The name of a rule that is reachable from the start and derives no finite text.
pub fn endless_rule(grammar: &CGrammar) -> Option<String> {
    if grammar.parametric() {
        return None; // conditions decide which rules apply
    }
    let mut rules: Vec<Rule> = Vec::new();
    let mut users: HashMap<usize, Vec<usize>> = HashMap::new(); // rules by a symbol of their right side
    let mut reached: HashMap<usize, CSymIdx> = HashMap::from([(0, CSymIdx::NULL)]);
    let mut unread = vec![grammar.start()];
    let mut ending: Vec<usize> = Vec::new();
    while let Some(symbol) = unread.pop() {
        if reached.insert(symbol.as_index(), symbol).is_some() {
            continue;
        }
        let data = grammar.sym_data(symbol);
        let is_nested = data.gen_grammar.is_some() && data.rules.is_empty();
        if data.is_terminal || data.is_nullable || is_nested {
            ending.push(symbol.as_index());
        }
        for &rule in grammar.rules_of(symbol) {
            let (rhs, _, _) = grammar.rule_rhs(rule);
            for part in rhs {
                users.entry(part.as_index()).or_default().push(rules.len());
            }
            unread.extend_from_slice(rhs);
            rules.push(Rule {
                lhs: symbol.as_index(),
                missing: rhs.len(),
            });
        }
    }
    let mut ends: HashMap<usize, bool> = ending.iter().map(|&symbol| (symbol, true)).collect();
    while let Some(symbol) = ending.pop() {
        for &rule in users.get(&symbol).into_iter().flatten() {
            let rule = &mut rules[rule];
            rule.missing -= 1;
            if rule.missing == 0 && ends.insert(rule.lhs, true).is_none() {
                ending.push(rule.lhs);
            }
        }
    }
    let is_endless = |index: &usize| *index != 0 && !ends.contains_key(index);
    let first = reached.keys().copied().filter(is_endless).min()?;
    Some(grammar.sym_data(reached[&first]).name.clone())
}
