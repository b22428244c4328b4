"""Tests of the on-device training API."""
