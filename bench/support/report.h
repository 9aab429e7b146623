// What both drivers put into their reports: the machine, JSON files and pictures.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/support/allocators.h"
#include "bench/support/statistics.h"

namespace rdmalloc::bench {

nlohmann::json host_description();  // processor, cores, memory, kernel, date
nlohmann::json to_json(const Summary& summary);
nlohmann::json to_json(const LeftOut& left_out);

// Makes the folders above `path`. What went wrong, or nothing.
std::string write_file(const std::string& path, const std::string& text);

// Writes the gnuplot script beside `picture` (as NAME.gp, so that it can be drawn again) and runs
// it. What went wrong or is missing, or nothing.
std::string draw(const std::string& picture, const std::string& script);

// Colour and width of an allocator's line or bar; rdmalloc's stands out.
std::string line_style(const std::string& allocator, std::size_t number);

// Text inside a gnuplot string or heredoc of one word.
std::string gnuplot_quoted(const std::string& text);

}  // namespace rdmalloc::bench
