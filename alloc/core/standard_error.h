// Whether descriptor 2 is standard error.
//
// In a program that has closed its standard error it may be a file of data, or a connection.
// Messages go there as long as it is the file that it was when the program started, or the one that
// descriptor 1 is too: a log that both were turned to. Only the last word before an abort
// does not ask (Message::print_anyhow).
#pragma once

namespace rdmalloc {

// Notes which file standard error is. At the start, before any message.
void standard_error_note();
// Whether descriptor 2 is standard error still.
bool has_standard_error();

}  // namespace rdmalloc
