//! The C interface of engine/constrain to llguidance (`binding.h` declares it). No panic crosses it:
//! every call runs under `catch_unwind` and reports the panic's message as an error.

mod endless;
mod number_guard;

use std::ffi::{c_char, c_int};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::api::{GrammarInit, ParserLimits, StopReason, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie, INVALID_TOKEN};
use llguidance::{Matcher, ParserFactory};
use number_guard::{NumberTokens, Place};

type Result<T> = std::result::Result<T, String>;

/// Deep enough for any grammar within the size limits of the caller. Untouched pages cost nothing.
const COMPILE_STACK_BYTES: usize = 512 << 20;

/// Added to the niceness of the compiling thread: beside busy workers it gets a tenth of a core, so
/// that a step of the engine hardly waits for it.
const COMPILE_NICENESS: c_int = 10;

extern "C" {
    /// On Linux, lowers the priority of the calling thread alone.
    fn nice(increment: c_int) -> c_int;
}

pub struct TandemVocabulary {
    factory: ParserFactory,
    environment: TokEnv,
    numbers: Arc<NumberTokens>,
}

pub struct TandemMatcher {
    matcher: Matcher,
    json: Option<JsonText>, // of grammars of JSON only
}

/// The text of a matcher, for the guard of its numbers.
#[derive(Clone)]
struct JsonText {
    environment: TokEnv,
    numbers: Arc<NumberTokens>,
    places: Vec<Place>, // after each token, the empty text first
}

/// Limits of one grammar; 0 keeps llguidance's own limit.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TandemLimits {
    pub max_grammar_size: u64,
    pub initial_lexer_fuel: u64,
    pub step_lexer_fuel: u64,
    pub step_max_items: u64,
    pub max_lexer_states: u64,
}

/// The caller's buffer for a message, which is cut to fit and always ends with NUL.
#[repr(C)]
pub struct TandemMessage {
    pub text: *mut c_char,
    pub size: usize,
}

fn say(message: &TandemMessage, text: &str) {
    if message.text.is_null() || message.size == 0 {
        return;
    }
    // The first line only: what follows is llguidance's dump of its state, or a backtrace.
    let line = text.split("\n<").next().unwrap_or("").as_bytes();
    let n = line.len().min(message.size - 1);
    // SAFETY: the caller's buffer has `size` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(line.as_ptr(), message.text.cast::<u8>(), n);
        *message.text.add(n) = 0;
    }
}

fn guard<T>(message: &TandemMessage, action: impl FnOnce() -> Result<T>) -> Option<T> {
    let run = AssertUnwindSafe(|| action().map_err(llguidance_error));
    match llguidance::panic_utils::catch_unwind(run) {
        Ok(value) => Some(value),
        Err(error) => {
            say(message, &error.to_string());
            None
        }
    }
}

/// Unlike `guard`, it needs no data of the thread, which may be gone when the process exits.
fn release<T>(value: Box<T>) {
    drop(std::panic::catch_unwind(AssertUnwindSafe(|| drop(value))));
}

fn llguidance_error(text: String) -> anyhow::Error {
    anyhow::anyhow!(text)
}

fn text_of(error: anyhow::Error) -> String {
    format!("{error:#}")
}

/// # Safety
/// `lengths` has `n_tokens` entries, `bytes` the sum of them; `end_tokens` has `n_end_tokens`.
#[no_mangle]
pub unsafe extern "C" fn tandem_vocabulary_new(
    n_tokens: u32,
    lengths: *const u32,
    bytes: *const u8,
    end_tokens: *const u32,
    n_end_tokens: u32,
    message: TandemMessage,
) -> *mut TandemVocabulary {
    let made = guard(&message, || {
        let lengths = std::slice::from_raw_parts(lengths, n_tokens as usize);
        let mut words = Vec::with_capacity(lengths.len());
        let mut at = bytes;
        for &length in lengths {
            words.push(std::slice::from_raw_parts(at, length as usize).to_vec());
            at = at.add(length as usize);
        }
        let mut trie = TokTrie::from(&TokRxInfo::new(n_tokens, INVALID_TOKEN), &words);
        if n_end_tokens > 0 {
            let ends = std::slice::from_raw_parts(end_tokens, n_end_tokens as usize);
            trie = trie.with_eos_tokens(ends);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(text_of)?;
        factory.quiet();
        Ok(Box::into_raw(Box::new(TandemVocabulary {
            factory,
            environment,
            numbers: Arc::new(NumberTokens::new(&words)),
        })))
    });
    made.unwrap_or(std::ptr::null_mut())
}

/// # Safety
/// `vocabulary` is null or from `tandem_vocabulary_new`, and unused afterwards.
#[no_mangle]
pub unsafe extern "C" fn tandem_vocabulary_free(vocabulary: *mut TandemVocabulary) {
    if !vocabulary.is_null() {
        release(Box::from_raw(vocabulary));
    }
}

fn or_default<T: TryFrom<u64>>(given: u64, default: T) -> T {
    if given == 0 {
        return default;
    }
    T::try_from(given).unwrap_or(default)
}

fn compile(
    factory: &ParserFactory,
    kind: &str,
    data: &str,
    limits: TandemLimits,
) -> Result<Matcher> {
    let mut parser_limits = ParserLimits::default();
    parser_limits.verbose_errors = false;
    parser_limits.max_grammar_size =
        or_default(limits.max_grammar_size, parser_limits.max_grammar_size);
    parser_limits.initial_lexer_fuel =
        or_default(limits.initial_lexer_fuel, parser_limits.initial_lexer_fuel);
    parser_limits.step_lexer_fuel =
        or_default(limits.step_lexer_fuel, parser_limits.step_lexer_fuel);
    parser_limits.step_max_items = or_default(limits.step_max_items, parser_limits.step_max_items);
    parser_limits.max_lexer_states =
        or_default(limits.max_lexer_states, parser_limits.max_lexer_states);
    let grammar = TopLevelGrammar::from_tagged_str(kind, data).map_err(text_of)?;
    let (grammar, lexer) = GrammarInit::Serialized(grammar)
        .to_internal(Some(factory.tok_env().clone()), parser_limits.clone())
        .map_err(text_of)?;
    let rules = grammar
        .optimize()
        .compile(lexer.clone(), &parser_limits)
        .map_err(text_of)?;
    if let Some(rule) = endless::endless_rule(&rules) {
        return Err(format!("the grammar's part '{rule}' allows no finite text"));
    }
    drop(rules);
    let parser = factory
        .create_parser_from_init_ext(
            GrammarInit::Internal(grammar, lexer),
            llguidance::Logger::new(0, 0),
            Default::default(),
            parser_limits,
        )
        .map_err(text_of)?;
    let mut matcher = Matcher::new(Ok(parser));
    // Finds a grammar without any text before a request runs, and fills the lexer's first states.
    let accepts_empty = matcher.is_accepting().map_err(text_of)?;
    match matcher.compute_mask() {
        Ok(_) => Ok(matcher),
        Err(_) if accepts_empty => Err("the grammar allows only the empty text".to_string()),
        Err(error) => match matcher.stop_reason() {
            StopReason::InternalError => Err(format!("the grammar allows no text: {error:#}")),
            _ => Err(text_of(error)),
        },
    }
}

/// # Safety
/// `vocabulary` is live; `kind` and `data` are valid for their sizes.
#[no_mangle]
pub unsafe extern "C" fn tandem_grammar_compile(
    vocabulary: *const TandemVocabulary,
    kind: *const u8,
    kind_size: usize,
    data: *const u8,
    data_size: usize,
    limits: TandemLimits,
    message: TandemMessage,
) -> *mut TandemMatcher {
    let compiled = guard(&message, || {
        let kind = std::str::from_utf8(std::slice::from_raw_parts(kind, kind_size))
            .map_err(|e| e.to_string())?;
        let data = std::str::from_utf8(std::slice::from_raw_parts(data, data_size))
            .map_err(|e| e.to_string())?;
        let vocabulary = &*vocabulary;
        let factory = &vocabulary.factory;
        // The front ends of llguidance recurse, and an overflow of the stack cannot be caught.
        let matcher = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("tandem-grammar".to_string())
                .stack_size(COMPILE_STACK_BYTES)
                .spawn_scoped(scope, || {
                    // SAFETY: takes and returns plain integers.
                    unsafe { nice(COMPILE_NICENESS) };
                    let run = AssertUnwindSafe(|| {
                        compile(factory, kind, data, limits).map_err(llguidance_error)
                    });
                    llguidance::panic_utils::catch_unwind(run).map_err(text_of)
                })
                .map_err(|e| format!("no thread to compile the grammar: {e}"))?;
            thread
                .join()
                .unwrap_or_else(|_| Err("the grammar's compiler failed".to_string()))
        })?;
        let json = (kind == "json_schema").then(|| JsonText {
            environment: vocabulary.environment.clone(),
            numbers: vocabulary.numbers.clone(),
            places: vec![Place::default()],
        });
        Ok(Box::into_raw(Box::new(TandemMatcher { matcher, json })))
    });
    compiled.unwrap_or(std::ptr::null_mut())
}

/// # Safety
/// `matcher` is live, and no other thread uses it.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_clone(
    matcher: *const TandemMatcher,
    message: TandemMessage,
) -> *mut TandemMatcher {
    let copy = guard(&message, || {
        let from = &*matcher;
        let matcher = from.matcher.deep_clone();
        let json = from.json.clone();
        Ok(Box::into_raw(Box::new(TandemMatcher { matcher, json })))
    });
    copy.unwrap_or(std::ptr::null_mut())
}

/// # Safety
/// `matcher` is null or live, and unused afterwards.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_free(matcher: *mut TandemMatcher) {
    if !matcher.is_null() {
        release(Box::from_raw(matcher));
    }
}

/// Returns 1 with the mask in `words`, 0 when the text is complete and nothing can follow, -1 on
/// failure.
///
/// # Safety
/// `matcher` is live; `words` has `n_words` entries.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_mask(
    matcher: *mut TandemMatcher,
    words: *mut u32,
    n_words: usize,
    message: TandemMessage,
) -> i32 {
    let result = guard(&message, || {
        let TandemMatcher { matcher, json } = &mut *matcher;
        if matcher.is_stopped() && matcher.stop_reason().is_ok() {
            return Ok(0);
        }
        let is_complete = matcher.is_accepting().map_err(text_of)?;
        let mask = match matcher.compute_mask() {
            Ok(mask) => mask,
            Err(_) if is_complete => return Ok(0),
            Err(error) => return Err(text_of(error)),
        };
        let out = std::slice::from_raw_parts_mut(words, n_words);
        out.fill(0);
        let given = mask.as_slice();
        let n = given.len().min(n_words);
        out[..n].copy_from_slice(&given[..n]);
        let goes_on = json.as_ref().is_none_or(|json| {
            let place = json.places.last().copied().unwrap_or_default();
            json.numbers.narrow(place, is_complete, out)
        });
        Ok(i32::from(goes_on))
    });
    result.unwrap_or(-1)
}

/// Returns 1 when the text is now complete and nothing can follow, 0 when it goes on, -1 on failure.
///
/// # Safety
/// `matcher` is live.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_commit(
    matcher: *mut TandemMatcher,
    token: u32,
    message: TandemMessage,
) -> i32 {
    let result = guard(&message, || {
        let TandemMatcher { matcher, json } = &mut *matcher;
        matcher.consume_token(token).map_err(text_of)?;
        if let Some(json) = json {
            let place = json.places.last().copied().unwrap_or_default();
            let bytes = json.environment.tok_trie().token(token);
            json.places.push(place.after(bytes));
        }
        let stopped = matcher.is_stopped();
        if stopped && !matcher.stop_reason().is_ok() {
            return Err(format!(
                "the grammar's matcher stopped: {}",
                matcher.stop_reason()
            ));
        }
        Ok(i32::from(stopped))
    });
    result.unwrap_or(-1)
}

/// Returns 1 when the text is complete, 0 when it is not, -1 on failure.
///
/// # Safety
/// `matcher` is live.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_is_complete(
    matcher: *mut TandemMatcher,
    message: TandemMessage,
) -> i32 {
    let result = guard(&message, || {
        let matcher = &mut (*matcher).matcher;
        if matcher.is_stopped() && matcher.stop_reason().is_ok() {
            return Ok(1);
        }
        matcher.is_accepting().map(i32::from).map_err(text_of)
    });
    result.unwrap_or(-1)
}

/// Returns 0, or -1 on failure.
///
/// # Safety
/// `matcher` is live.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_rollback(
    matcher: *mut TandemMatcher,
    n_tokens: usize,
    message: TandemMessage,
) -> i32 {
    let result = guard(&message, || {
        let TandemMatcher { matcher, json } = &mut *matcher;
        matcher.rollback(n_tokens).map_err(text_of)?;
        if let Some(json) = json {
            json.places
                .truncate(json.places.len().saturating_sub(n_tokens));
        }
        // llguidance 1.9.1 keeps the last mask by row number, and other text may fill that row now.
        matcher.invalidate_bias_cache();
        Ok(())
    });
    result.map_or(-1, |()| 0)
}

/// Writes up to `size` bytes that every continuation begins with; returns how many, or -1 on failure.
///
/// # Safety
/// `matcher` is live; `bytes` has `size` entries.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_forced(
    matcher: *mut TandemMatcher,
    bytes: *mut u8,
    size: usize,
    message: TandemMessage,
) -> i64 {
    let result = guard(&message, || {
        let matcher = &mut (*matcher).matcher;
        if matcher.is_stopped() {
            return Ok(0);
        }
        let forced = matcher.compute_ff_bytes();
        let n = forced.len().min(size);
        std::ptr::copy_nonoverlapping(forced.as_ptr(), bytes, n);
        Ok(n as i64)
    });
    result.unwrap_or(-1)
}

/// Panics inside the border, for the test of it. Returns -1 with the panic's message.
#[no_mangle]
pub extern "C" fn tandem_llguidance_panic(message: TandemMessage) -> i32 {
    guard(&message, || -> Result<()> { panic!("a panic on purpose") }).map_or(-1, |()| 0)
}

/// The version of llguidance, NUL-terminated; null without llguidance.
#[no_mangle]
pub extern "C" fn tandem_llguidance_version() -> *const c_char {
    c"1.9.1".as_ptr()
}
