#!/bin/sh
# cppcheck over the sources, with what it cannot know: it reads GNU's noreturn, not C11's; and the values
# of any dtype live in char memory, so casts of its pointers are meant. Usage: tools/cppcheck.sh
exec cppcheck -q -j"$(nproc)" --std=c11 --enable=warning,performance,portability --error-exitcode=1 \
    --inline-suppr --suppress=invalidPointerCast -D'_Noreturn=__attribute__((noreturn))' \
    -D'TN_VERSION=""' -Iinclude "$@" src tests
